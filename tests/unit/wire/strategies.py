"""Hypothesis strategies for any betterproto2 dataclass, from the same field metadata that the schema is built from."""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from typing import Any

import betterproto2
from betterproto2 import FieldMetadata
from hypothesis import strategies as st

_INTEGERS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1)}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in _INTEGERS.items()},
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
}


def messages(cls: type[Any], depth: int = 3) -> st.SearchStrategy[Any]:
    """Instances with any subset of their fields set, nested to `depth` messages."""
    hints = typing.get_type_hints(cls)
    optional: dict[str, st.SearchStrategy[Any]] = {}
    oneofs: dict[str, list[str]] = {}
    for field in dataclasses.fields(cls):
        meta = FieldMetadata.get(field)
        values = _values(meta, hints[field.name], depth)
        if values is not None:
            optional[field.name] = values
            if meta.group:
                oneofs.setdefault(meta.group, []).append(field.name)
    groups = list(oneofs.values())

    def build(chosen: dict[str, Any]) -> Any:
        for group in groups:
            for name in [name for name in group if name in chosen][1:]:
                del chosen[name]
        return cls(**chosen)

    return st.fixed_dictionaries({}, optional=optional).map(build)


def _values(meta: FieldMetadata, hint: Any, depth: int) -> st.SearchStrategy[Any] | None:
    if meta.map_meta:
        value = _single(meta.map_meta[1], typing.get_args(hint)[1], depth)
        return None if value is None else st.dictionaries(st.text(max_size=4), value, max_size=2)
    single = _single(meta, _plain(hint), depth)
    return st.lists(single, max_size=2) if meta.repeated and single is not None else single


def _single(meta: FieldMetadata, cls: Any, depth: int) -> st.SearchStrategy[Any] | None:
    if meta.proto_type == "enum":
        return st.sampled_from(list(cls))
    if meta.proto_type != "message":
        return _SCALARS[meta.proto_type]
    if cls is datetime.timedelta:
        return st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=3))
    if cls in (bool, int):
        return st.booleans() if cls is bool else st.integers(0, 2**32 - 1)
    if not issubclass(cls, betterproto2.Message) or depth == 0:
        return None
    return st.deferred(lambda: messages(cls, depth - 1))


def _plain(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or origin is list:
        return _plain(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _plain(next(arg for arg in typing.get_args(hint) if arg is not types.NoneType))
    return hint
