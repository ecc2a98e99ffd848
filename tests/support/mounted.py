"""A folder that behaves like a ConfigMap mounted by Kubernetes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class Mounted:
    """A policy as Kubernetes mounts a ConfigMap: `policy.yaml` -> `..data/policy.yaml`, `..data` -> a dated folder."""

    def __init__(self, folder: Path, content: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.file = folder / "policy.yaml"
        self._versions = 0
        self.swap(content)
        self.file.symlink_to("..data/policy.yaml")

    def swap(self, content: str) -> None:
        """As the kubelet does it: a new folder, a new link, renamed over the old one, and the old folder removed."""
        self._versions += 1
        new, link, data = self.folder / f"..v{self._versions}", self.folder / "..data_tmp", self.folder / "..data"
        new.mkdir()
        (new / "policy.yaml").write_text(content)
        link.symlink_to(new.name)
        os.rename(link, data)
        shutil.rmtree(self.folder / f"..v{self._versions - 1}", ignore_errors=True)
