"""`extproc check`: exact messages for policy files and for the Envoy configurations around them."""

from extproc.check.files import check_files
from extproc.check.report import FileKind, FileReport, render

__all__ = ["FileKind", "FileReport", "check_files", "render"]
