"""The files that ship beside the code, in a checkout at its root, in an installed package below `_files`."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Where `envoy/...` or `redis/...` is. FileNotFoundError where neither a checkout nor the package holds it."""
    for base in (_HERE / "_files", _HERE.parent):
        if (path := base / name).is_file():
            return path
    raise FileNotFoundError(f"{name} is neither in this package nor beside it")


def envoy_yaml() -> str:
    """The text of the complete Envoy configuration."""
    return shipped("envoy/envoy.yaml").read_text(encoding="utf-8")
