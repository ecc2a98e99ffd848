"""What every section of the policy is made of: the base of its structs, and values that YAML has no word for."""

from __future__ import annotations

from msgspec import Struct


class Seconds(float):
    """A duration: `250ms`, `8s`, `1.5m`, `1h`, or a bare number of seconds. Not negative, finite."""


class Bytes(int):
    """A size: `512KiB`, `1MiB`, `1MB`, or a bare number of bytes. Not negative."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One mapping of the file. An unknown key is an error."""
