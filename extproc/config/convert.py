"""From YAML nodes to the schema's structs, generic over what msgspec knows of them. Collects every problem and goes on.

msgspec's own conversion stops at the first error and knows no lines, so only its description of the structs is used.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from enum import StrEnum

import msgspec.inspect as kinds
from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from extproc.config.checks import RANGES, relations
from extproc.config.pool import implied
from extproc.config.section import Bytes, Seconds
from extproc.config.source import Document, describe, foreign_tag, joined
from extproc.config.units import BadValue, read_bytes, read_priority, read_seconds
from extproc.model import Priority


class Bad:
    """Stands for a value that could not be read; the problem is already reported."""


BAD = Bad()


def convert(document: Document, kind: kinds.Type, node: Node, path: str) -> object:
    """The value at `node` as `kind`, or BAD."""
    if tag := foreign_tag(node):
        return _wrong(document, node, path, f"a value without the tag {tag}")
    match kind:
        case kinds.UnionType():
            return _union(document, kind, node, path)
        case kinds.StructType():
            return _struct(document, kind, node, path)
        case kinds.VarTupleType():
            return _list(document, kind, node, path)
        case kinds.DictType():
            return _dict(document, kind, node, path)
        case _:
            return _leaf(document, kind, node, path)


def fields_of(document: Document, kind: kinds.StructType, node: Node, path: str) -> dict[str, object] | None:
    """A struct's given fields by name, BAD where they could not be read; None where there is not even a mapping."""
    if not isinstance(node, MappingNode):
        _wrong(document, node, path, "a mapping")
        return None
    known = {field.encode_name: field for field in kind.fields}
    values: dict[str, object] = {}
    for key, key_node, value_node in document.entries(node, path):
        field = known.get(key)
        if field is None:
            document.report(joined(path, key), key_node, f"unknown key; {_suggestion(key, list(known))}")
            continue
        value = convert(document, field.type, value_node, joined(path, key))
        if value is not BAD and (problem := _out_of_range(kind.cls, field.name, value)):
            value = _wrong(document, value_node, joined(path, key), problem)
        values[field.name] = value
    for name, field in known.items():
        if field.required and field.name not in values:
            document.report(joined(path, name), node, f"missing; expected {expected(field.type)}")
            values[field.name] = BAD
    return values


def _struct(document: Document, kind: kinds.StructType, node: Node, path: str) -> object:
    values = fields_of(document, kind, node, path)
    if values is None or any(value is BAD for value in values.values()):
        return BAD
    struct: Struct = kind.cls(**{**implied(kind.cls, values), **values})
    problems = list(relations(struct))
    for where, message in problems:
        document.report_at(f"{path}.{where}" if where else path, message)
    return BAD if problems else struct


def _union(document: Document, kind: kinds.UnionType, node: Node, path: str) -> object:
    """Every union of the schema is told apart by what YAML shows: nothing, one fixed word, or the rest."""
    rest = kind.types
    if any(isinstance(option, kinds.NoneType) for option in rest):
        if _is_null(node):
            return None
        rest = tuple(option for option in rest if not isinstance(option, kinds.NoneType))
    for option in rest:
        if isinstance(option, kinds.LiteralType):
            if isinstance(node, ScalarNode) and node.value in option.values:
                return node.value
            others = [other for other in rest if other is not option]
            if not isinstance(node, MappingNode):
                return _wrong(document, node, path, expected(kind))
            return convert(document, others[0], node, path)
    return convert(document, rest[0], node, path)


def _list(document: Document, kind: kinds.VarTupleType, node: Node, path: str) -> object:
    if not isinstance(node, SequenceNode):
        return _wrong(document, node, path, expected(kind))
    items = [convert(document, kind.item_type, item, f"{path}[{i}]") for i, item in enumerate(node.value)]
    return BAD if any(item is BAD for item in items) else tuple(items)


def _dict(document: Document, kind: kinds.DictType, node: Node, path: str) -> object:
    if not isinstance(node, MappingNode):
        return _wrong(document, node, path, "a mapping")
    result: dict[object, object] = {}
    sound = True
    for key_text, key_node, value_node in document.entries(node, path):
        # A key is text whatever YAML thinks of it (`0:` means P0); only a priority needs reading.
        key: object = key_text
        if isinstance(kind.key_type, kinds.EnumType):
            key = _leaf(document, kind.key_type, key_node, joined(path, key_text))
        value = convert(document, kind.value_type, value_node, joined(path, key_text))
        if key in result:
            document.report(joined(path, key_text), key_node, f"given twice: {key} is there already under another name")
            sound = False
        sound = sound and key is not BAD and value is not BAD
        result[key] = value
    return result if sound else BAD


def _leaf(document: Document, kind: kinds.Type, node: Node, path: str) -> object:
    if not isinstance(node, ScalarNode) or _is_null(node):
        return _wrong(document, node, path, expected(kind))
    try:
        if (reader := _FROM_TEXT.get(_name(kind))) is not None:
            return reader(node.value)
        if isinstance(kind, kinds.EnumType):
            return kind.cls(node.value)
        return _FROM_VALUE[_name(kind)](document.scalar(node))
    except BadValue as error:
        return _wrong(document, node, path, str(error))
    except ValueError:
        quote = f' (put it in quotes: "{node.value}")' if isinstance(kind, kinds.StrType) else ""
        return _wrong(document, node, path, expected(kind) + quote)


def _name(kind: kinds.Type) -> str:
    if isinstance(kind, kinds.CustomType | kinds.EnumType):
        return kind.cls.__name__
    return type(kind).__name__


_MOST_WHOLE = 1 << 53
"""Above this floats, in which limits are counted, cannot tell whole numbers apart; far above it there are none."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_WHOLE:
        raise ValueError
    return value


def _number(value: object) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return value
    return float(_whole(value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


_FROM_TEXT: dict[str, Callable[[str], object]] = {
    # Not from YAML's value: YAML 1.1 reads `1:30` as ninety.
    Seconds.__name__: read_seconds,
    Bytes.__name__: read_bytes,
    Priority.__name__: read_priority,
}
_FROM_VALUE: dict[str, Callable[[object], object]] = {
    "StrType": _text,
    "IntType": _whole,
    "FloatType": _number,
    "BoolType": _flag,
}
_PLAIN_EXPECTATIONS = {
    "StrType": "text",
    "IntType": "a whole number",
    "FloatType": "a number",
    "BoolType": "true or false",
    "StructType": "a mapping",
    "DictType": "a mapping",
    Seconds.__name__: "a duration such as 250ms, 8s, 1.5m",
    Bytes.__name__: "a size such as 512KiB, 1MiB, 1048576",
    Priority.__name__: "a priority: P0, P1 or P2",
}


def expected(kind: kinds.Type) -> str:
    match kind:
        case kinds.UnionType():
            options = [expected(option) for option in kind.types if not isinstance(option, kinds.NoneType)]
            return " or ".join(sorted(options, key=len))
        case kinds.LiteralType():
            return " or ".join(str(value) for value in kind.values)
        case kinds.VarTupleType(item_type=kinds.StructType()):
            return "a list of mappings"
        case kinds.VarTupleType():
            return f"a list, each {expected(kind.item_type)}"
        case kinds.EnumType() if issubclass(kind.cls, StrEnum):
            words = [str(member.value) for member in kind.cls]
            return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
        case _:
            return _PLAIN_EXPECTATIONS[_name(kind)]


def _wrong(document: Document, node: Node, path: str, expected: str) -> Bad:
    document.report(path, node, f"expected {expected}; got {describe(node)}")
    return BAD


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and bool(node.tag == "tag:yaml.org,2002:null")


def _out_of_range(struct: type[Struct], name: str, value: object) -> str | None:
    bounds = RANGES.get((struct, name))
    if bounds is None or not isinstance(value, int | float) or bounds.holds(value):
        return None
    return bounds.expected


def _suggestion(key: str, known: list[str]) -> str:
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.replace("_", "").replace("-", "").lower(), list(folded), n=1, cutoff=0.7)
    return f"did you mean {folded[close[0]]}?" if close else f"expected one of {', '.join(known)}"
