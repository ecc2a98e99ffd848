"""A `Policy` as plain data in the words of its file: what `/policy` shows and `parse_policy` reads back unchanged.

The schema holds no secrets, only hashes of API keys and names of variables; `masked` shortens the hashes for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from extproc.config.schema import Policy
from extproc.config.section import Bytes, Seconds
from extproc.config.units import write_bytes, write_seconds
from extproc.model import Priority


def to_plain(policy: Policy) -> dict[str, object]:
    """Every knob with its value in force. Durations and sizes are text, priorities labels; the unset is left out."""
    return _struct(policy)


def fingerprint(policy: Policy) -> str:
    """Short, the same for the same policy, whatever its file looks like."""
    return hashlib.sha256(msgspec.json.encode(to_plain(policy), order="sorted")).hexdigest()[:12]


def masked(plain_policy: dict[str, object]) -> dict[str, object]:
    """The same without the hashes: their beginnings are enough to tell keys apart."""
    tenants = plain_policy.get("tenants")
    if not isinstance(tenants, list):
        return plain_policy
    return plain_policy | {
        "tenants": [{**tenant, "keys": [f"{key[:13]}..." for key in tenant["keys"]]} for tenant in tenants]
    }


def _struct(struct: Struct) -> dict[str, object]:
    values = ((field.encode_name, getattr(struct, field.name)) for field in fields(struct))
    return {name: plain(value) for name, value in values if value is not None and value is not UNSET}


def plain(value: object) -> object:
    """One value of a policy as YAML and JSON know it."""
    match value:
        case Struct():
            return _struct(value)
        case Seconds():
            return write_seconds(value)
        case Bytes():
            return write_bytes(value)
        case Priority():
            return value.name
        case Enum():
            return value.value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
        case _:
            return value
