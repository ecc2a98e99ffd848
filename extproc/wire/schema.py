"""Protobuf classes on the C runtime (upb), built at import from envoy-data-plane's dataclasses.

The dataclasses carry everything a descriptor needs (number, type, oneof, repeated, map, wrapped type) as field metadata;
their own parser takes about 300 us for one request, upb about 1 us for the same bytes. The descriptor pool is private:
other copies of Envoy's protobuf classes in the process do not clash with it. Only the wire format is taken over:
fields' JSON names, options and validation rules are not.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import types
import typing
from typing import Any

import betterproto2
from betterproto2 import FieldMetadata
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingRequest as _Request
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as _Response
from google.protobuf import any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "extproc.wire"
_WELL_KNOWN_FILES = (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
_WELL_KNOWN_PYTHON: dict[type, str] = {
    datetime.timedelta: "google.protobuf.Duration",
    datetime.datetime: "google.protobuf.Timestamp",
}
_SCALARS: dict[str, FieldDescriptorProto.Type.ValueType] = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in (
        *("bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "float", "double"),
        *("fixed32", "sfixed32", "fixed64", "sfixed64", "string", "bytes"),
    )
}


class SchemaError(TypeError):
    """A dataclass has a shape that this module does not know: a new release of envoy-data-plane, seen at import."""


class _Builder:
    """Collects one FileDescriptorProto: every message and enum reachable from the roots, flat, in one package."""

    def __init__(self) -> None:
        self.file = FileDescriptorProto(name="extproc/wire.proto", package=_PACKAGE, syntax="proto3")
        self.file.dependency.extend(module.DESCRIPTOR.name for module in _WELL_KNOWN_FILES)
        self._names: dict[type, str] = {}
        self._pending: list[tuple[type, DescriptorProto]] = []

    def add(self, root: type) -> str:
        """Adds a root and all it reaches; returns its full name."""
        name = self._name_of(root)
        while self._pending:
            cls, message = self._pending.pop()
            hints = typing.get_type_hints(cls)
            for field in dataclasses.fields(cls):
                self._add_field(message, field.name, FieldMetadata.get(field), hints[field.name])
        return name

    def _name_of(self, cls: type) -> str:
        if cls in _WELL_KNOWN_PYTHON:
            return _WELL_KNOWN_PYTHON[cls]
        if ".google.protobuf" in cls.__module__:
            return f"google.protobuf.{cls.__name__}"
        if cls not in self._names:
            local = f"{cls.__module__.replace('.', '_')}_{cls.__name__}"
            self._names[cls] = f"{_PACKAGE}.{local}"
            if issubclass(cls, betterproto2.Enum):
                self._add_enum(cls, local)
            elif issubclass(cls, betterproto2.Message):
                self._pending.append((cls, self.file.message_type.add(name=local)))
            else:
                raise SchemaError(f"{cls!r} is neither a message nor an enum")
        return self._names[cls]

    def _add_enum(self, cls: type[betterproto2.Enum], local: str) -> None:
        enum = EnumDescriptorProto(name=local)
        for member in sorted(cls, key=lambda member: member.value != 0):  # proto3: the first value must be 0
            enum.value.add(name=f"{local}_{member.name}", number=member.value)
        enum.options.allow_alias = len({member.value for member in cls}) < len(enum.value)
        if not enum.options.allow_alias:
            enum.ClearField("options")
        self.file.enum_type.append(enum)

    def _add_field(self, message: DescriptorProto, name: str, meta: FieldMetadata, hint: Any) -> None:
        field = message.field.add(name=name, number=meta.number)
        field.label = field.LABEL_REPEATED if meta.repeated or meta.map_meta else field.LABEL_OPTIONAL
        if meta.map_meta:
            self._make_map(message, field, meta.map_meta, hint)
        else:
            self._set_type(field, meta.proto_type, meta.unwrap() if meta.unwrap else _plain(hint))
        if meta.group:
            field.oneof_index = _oneof_index(message, meta.group)
        elif meta.optional and field.type not in (field.TYPE_MESSAGE, field.TYPE_GROUP):
            field.proto3_optional = True
            field.oneof_index = _oneof_index(message, f"_{name}")

    def _make_map(
        self,
        message: DescriptorProto,
        field: FieldDescriptorProto,
        metas: tuple[FieldMetadata, FieldMetadata],
        hint: Any,
    ) -> None:
        entry_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        for name, meta, python_type in zip(("key", "value"), metas, typing.get_args(hint), strict=True):
            part = entry.field.add(name=name, number=meta.number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._set_type(part, meta.proto_type, meta.unwrap() if meta.unwrap else _plain(python_type))
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry_name}"

    def _set_type(self, field: FieldDescriptorProto, proto_type: str, python_type: Any) -> None:
        if proto_type in _SCALARS:
            field.type = _SCALARS[proto_type]
        elif proto_type in ("message", "enum") and inspect.isclass(python_type):
            field.type = field.TYPE_MESSAGE if proto_type == "message" else field.TYPE_ENUM
            field.type_name = "." + self._name_of(python_type)
        else:
            raise SchemaError(f"field {field.name}: {proto_type} of {python_type!r} is not known")


def _oneof_index(message: DescriptorProto, group: str) -> int:
    names = [oneof.name for oneof in message.oneof_decl]
    if group not in names:
        message.oneof_decl.add(name=group)
        names.append(group)
    return names.index(group)


def _plain(hint: Any) -> Any:
    """The class inside `X | None`, `list[X]` and `Annotated[X, ...]`."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or origin is list:
        return _plain(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _plain(next(arg for arg in typing.get_args(hint) if arg is not types.NoneType))
    return hint


def build(*roots: type) -> list[Any]:
    """One upb message class per root, in order. Raises `SchemaError` for what cannot be mapped."""
    builder = _Builder()
    names = [builder.add(root) for root in roots]
    _order_synthetic_oneofs_last(builder.file)
    pool = DescriptorPool()
    for module in _WELL_KNOWN_FILES:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(builder.file.SerializeToString())
    return [GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


def _order_synthetic_oneofs_last(file: FileDescriptorProto) -> None:
    """protobuf wants the oneofs of proto3 `optional` fields after the real ones."""
    for message in file.message_type:
        before = [oneof.name for oneof in message.oneof_decl]
        after = sorted(before, key=lambda name: name.startswith("_"))
        for field in message.field:
            if field.HasField("oneof_index"):
                field.oneof_index = after.index(before[field.oneof_index])
        for oneof, name in zip(message.oneof_decl, after, strict=True):
            oneof.name = name


ProcessingRequest, ProcessingResponse = build(_Request, _Response)
