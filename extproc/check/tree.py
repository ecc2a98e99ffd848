"""Plain data of a YAML or JSON file with the path to each place. Keys are `snake_case` or `camelCase`, as for Envoy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DURATION = re.compile(r"(\d+(?:\.\d{1,9})?)s", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tree:
    """A value and where it stands. What is missing is None, with the path it would have had."""

    path: str
    value: object

    def get(self, *keys: str) -> Tree:
        """The value below `keys`, given in snake_case."""
        tree = self
        for key in keys:
            tree = tree._step(key)
        return tree

    def _step(self, key: str) -> Tree:
        mapping = self.value if isinstance(self.value, dict) else {}
        camel = _camel(key)
        name = camel if key not in mapping and camel in mapping else key
        return Tree(_joined(self.path, name), mapping.get(name))

    @property
    def given(self) -> bool:
        return self.value is not None

    def items(self) -> list[Tree]:
        """The items of a list; none for anything else."""
        values = self.value if isinstance(self.value, list) else []
        return [Tree(f"{self.path}[{i}]", value) for i, value in enumerate(values)]

    def text(self, default: str = "") -> str:
        return self.value if isinstance(self.value, str) else default

    def number(self, default: float) -> float:
        """A number, also as text: protobuf's JSON writes 64-bit integers so."""
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            return float(self.value)
        return float(self.value) if isinstance(self.value, str) and self.value.isdecimal() else default

    def flag(self, *, default: bool = False) -> bool:
        return self.value if isinstance(self.value, bool) else default

    def seconds(self, default: float) -> float:
        """A protobuf duration such as `0.250s`. Envoy itself refuses any other text, so that is the default here."""
        found = _DURATION.fullmatch(self.text())
        return float(found[1]) if found else default

    def type_name(self) -> str:
        """The last part of a typed config's type, empty where it has none."""
        return self.get("@type").text().rpartition(".")[2]

    def walk(self) -> Iterator[Tree]:
        """Every mapping at or below this place, outer before inner."""
        pending = [self]
        while pending:
            tree = pending.pop()
            if isinstance(tree.value, dict):
                yield tree
                inner = [Tree(_joined(tree.path, str(key)), value) for key, value in tree.value.items()]
            else:
                inner = tree.items()
            pending.extend(reversed(inner))

    def holds(self, other: Tree) -> bool:
        """Whether `other` stands below this place."""
        return other.path.startswith((f"{self.path}.", f"{self.path}["))


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _joined(path: str, key: str) -> str:
    word = f'"{key}"' if "." in key else key
    return f"{path}.{word}" if path else word
