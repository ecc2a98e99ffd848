"""What a check found, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from extproc.errors import Problem


class Severity(StrEnum):
    ERROR = "error"
    """It will not work, or not protect."""
    WARNING = "warning"
    """It works, but perhaps not as meant."""


class FileKind(StrEnum):
    POLICY = "policy"
    ENVOY = "envoy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    problem: Problem


@dataclass(frozen=True, slots=True)
class FileReport:
    """All that was found in one file, errors and warnings apart, each in the order of the checks."""

    file: str
    kind: FileKind
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing that must be mended; warnings do not count."""
        return not self.errors


def error(path: str, message: str) -> Finding:
    return Finding(Severity.ERROR, Problem(path, message))


def warning(path: str, message: str) -> Finding:
    return Finding(Severity.WARNING, Problem(path, message))


def report(file: str, kind: FileKind, findings: Iterable[Finding]) -> FileReport:
    """Findings sorted by severity, those made twice told once."""
    unique = list(dict.fromkeys(findings))
    errors = tuple(f.problem for f in unique if f.severity is Severity.ERROR)
    warnings = tuple(f.problem for f in unique if f.severity is Severity.WARNING)
    return FileReport(file, kind, errors, warnings)


def render(reports: Iterable[FileReport]) -> str:
    """One line for each finding, one for each file without errors; ends with a newline unless there are no reports."""
    lines: list[str] = []
    for each in reports:
        for severity, problems in ((Severity.ERROR, each.errors), (Severity.WARNING, each.warnings)):
            for problem in problems:
                place = f"{each.file}:{problem.line}" if problem.line else each.file
                lines.append(f"{place}: {severity}: {problem}")
        if each.ok:
            lines.append(f"{each.file}: {each.kind} ok")
    return "".join(f"{line}\n" for line in lines)
