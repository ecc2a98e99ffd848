"""The reference of every knob, made from the schema: `python -m extproc.config.describe > docs/policy.md`.

Effects are the docstrings below the fields of the schema, which Python does not keep; they are read from its source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec.inspect as kinds
import yaml
from msgspec import NODEFAULT, UNSET, Struct

from extproc.config import controllers, pool, requests, schema
from extproc.config.checks import RANGES
from extproc.config.convert import expected
from extproc.config.plain import plain

_SCHEMA = (schema, pool, controllers, requests)
_HEAD = """# The policy file

Made from `extproc/config/schema.py` by `python -m extproc.config.describe`; do not edit.

YAML. Unknown keys are errors. `{}` is a valid policy: every knob but those marked *required* has a default.
Durations are `250ms`, `8s`, `1.5m`, `1h` or bare seconds; sizes are `512KiB`, `1MiB`, `1MB` or bare bytes; priorities
are `P0`, `P1`, `P2`, or `0`, `1`, `2`, or `realtime`, `agent`, `batch`. `extproc check FILE` names everything that is
wrong with a file. A Kubernetes ConfigMap that holds the policy under `data."policy.yaml"` is read as it is.
"""


@dataclass(frozen=True, slots=True)
class Knob:
    """One row: the key inside its section, what may stand there, what holds without it, what it does. Plain text."""

    key: str
    value: str
    default: str
    effect: str


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of the file. `path` is empty for the file itself; `[]` stands for each item of a list."""

    path: str
    summary: str
    knobs: tuple[Knob, ...]


def sections() -> Iterator[Section]:
    """Every mapping a policy file may hold, outer before inner, in the order of the schema."""
    docs = _field_docs()
    waiting: list[tuple[str, type[Struct]]] = [("", schema.Policy)]
    while waiting:
        path, struct = waiting.pop(0)
        info = kinds.type_info(struct)
        assert isinstance(info, kinds.StructType)
        knobs = tuple(_knob(struct, field, docs[struct.__name__, field.name]) for field in info.fields)
        yield Section(path, " ".join((struct.__doc__ or "").split()), knobs)
        inner = [(_extend(path, field), found) for field in info.fields for found in _structs(field.type)]
        waiting = inner + waiting


def render() -> str:
    """The reference as Markdown."""
    parts = [_HEAD]
    for section in sections():
        title = f"`{section.path}`" if section.path else "Top level"
        parts.append(f"\n## {title}\n\n{section.summary}\n\n| key | value | default | effect |\n|---|---|---|---|\n")
        for knob in section.knobs:
            cells = (f"`{knob.key}`", knob.value, knob.default, knob.effect)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _knob(struct: type[Struct], field: kinds.Field, doc: str) -> Knob:
    bounds = RANGES.get((struct, field.name))
    value = bounds.expected if bounds else expected(field.type)
    return Knob(field.encode_name, value, _default(field), doc)


def _default(field: kinds.Field) -> str:
    if field.required:
        return "*required*"
    default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
    if default in (None, UNSET, NODEFAULT) or default in ({}, ()):
        return "none"
    if any(True for _ in _structs(field.type)) and not isinstance(default, str):
        return "see below"
    text = yaml.safe_dump(plain(default), default_flow_style=True, width=1000)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


def _extend(path: str, field: kinds.Field) -> str:
    marks = {kinds.VarTupleType: "[]", kinds.DictType: ".<priority>"}
    return f"{path}.{field.encode_name}".strip(".") + marks.get(type(field.type), "")


def _structs(kind: kinds.Type) -> Iterator[type[Struct]]:
    """The structs that stand directly under a field of this kind."""
    match kind:
        case kinds.StructType():
            yield kind.cls
        case kinds.UnionType():
            for option in kind.types:
                yield from _structs(option)
        case kinds.VarTupleType():
            yield from _structs(kind.item_type)
        case kinds.DictType():
            yield from _structs(kind.value_type)
        case _:
            pass


def _field_docs() -> dict[tuple[str, str], str]:
    """The docstring below each field, by class and field name; KeyError later means that one is missing."""
    found: dict[tuple[str, str], str] = {}
    nodes = (node for module in _SCHEMA for node in ast.parse(inspect.getsource(module)).body)
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[node.name, field.target.id] = " ".join(str(below.value.value).split())
    return found


if __name__ == "__main__":
    sys.stdout.write(render())
