"""Durations, sizes, priorities and names as operators write them, read and written back exactly.

A reader takes the text of one YAML scalar and raises `BadValue` with what was expected; its caller knows where.
"""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal

from extproc.config.section import Bytes, Seconds
from extproc.model import PRIORITIES, Priority

_NUMBER_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,40})?)\s*([a-zA-Z]*)", re.ASCII)
_SECONDS = {
    "": Decimal(1),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?):(\d{1,5})", re.ASCII)

PRIORITY_ALIASES = {"realtime": Priority.P0, "agent": Priority.P1, "batch": Priority.P2}
"""Words for P0, P1, P2 in a policy file."""

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
"""RFC 9110 token: what a header may be called. Pseudo headers (`:path`) do not match."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""What a queue or a pool may be called: it becomes a header value, a metric label and part of a key."""


class BadValue(ValueError):
    """A scalar that is not what its place calls for; the text says what was expected, not what was given."""


def read_seconds(text: str) -> Seconds:
    """`250ms`, `8s`, `1.5m`, `1h` or bare seconds. BadValue for anything else, negative numbers included."""
    return Seconds(float(_scaled(text, _SECONDS, "a duration such as 250ms, 8s, 1.5m")))


def read_bytes(text: str) -> Bytes:
    """`512KiB`, `1MiB`, `1MB` or bare bytes. BadValue for anything else, fractions of a byte included."""
    expected = "a size such as 512KiB, 1MiB, 1048576"
    size = _scaled(text, {unit: Decimal(factor) for unit, factor in _BYTES.items()}, expected)
    if size != size.to_integral_value():
        raise BadValue(expected)
    return Bytes(int(size))


def read_priority(text: str) -> Priority:
    """`0`, `P0` or an alias. BadValue for anything else."""
    for priority in PRIORITIES:
        if text in (priority.name, str(priority.value)):
            return priority
    if text in PRIORITY_ALIASES:
        return PRIORITY_ALIASES[text]
    raise BadValue(f"a priority: P0, P1, P2 (or 0, 1, 2, or {', '.join(PRIORITY_ALIASES)})")


def write_seconds(seconds: float) -> str:
    """Text that `read_seconds` reads back to the same float: milliseconds below one second, else seconds."""
    exact = Decimal(repr(float(seconds)))
    return f"{_plain(exact * 1000)}ms" if 0 < exact < 1 else f"{_plain(exact)}s"


def write_bytes(size: int) -> str:
    """The largest binary unit that divides the size evenly, else bare bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(int(size))


def is_host_port(text: str) -> bool:
    """`host:port`; an IPv6 address stands in brackets, a port is 1..65535."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 65535:
        return False
    try:
        return found[1] is None or bool(ipaddress.IPv6Address(found[1]))
    except ValueError:
        return False


def _scaled(text: str, units: dict[str, Decimal], expected: str) -> Decimal:
    # Decimal keeps `100ms` from becoming 0.1000000001 s.
    found = _NUMBER_UNIT.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise BadValue(expected)
    return Decimal(found[1]) * units[found[2]]


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
