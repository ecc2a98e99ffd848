"""YAML text as nodes that still know their lines, and the list that problems are collected in. No schema here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from extproc.errors import ConfigError, Problem

MAX_CHARACTERS = 1 << 20
"""What a ConfigMap may hold; more is not a policy."""

_STEPS = re.compile(r'([^.\[\]"]+)|\[(\d+)\]')
_STANDARD_TAG = "tag:yaml.org,2002:"
_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Document:
    """One parsed document. `base_path` and `base_line` place it in the file when it was embedded in another."""

    loader: yaml.SafeLoader
    root: Node
    base_path: str = ""
    base_line: int = 0
    problems: list[Problem] = field(default_factory=list)

    def report(self, path: str, node: Node | None, message: str) -> None:
        """Adds a problem at `path`, with the line of `node`."""
        full = f"{self.base_path}.{path}".strip(".") if self.base_path else path
        self.problems.append(Problem(full, message, self.line(node)))

    def report_at(self, path: str, message: str) -> None:
        """Adds a problem at `path`, with the line of the deepest node on it that is there."""
        self.report(path, self.deepest(path), message)

    def deepest(self, path: str) -> Node:
        """The node at `path`, or the last one on the way to it that is there."""
        node = self.root
        for key, index in _STEPS.findall(path):
            if key and isinstance(node, MappingNode):
                inner = [value for name, value in node.value if isinstance(name, ScalarNode) and name.value == key]
            elif index and isinstance(node, SequenceNode):
                inner = node.value[int(index) : int(index) + 1]
            else:
                inner = []
            if not inner:
                break
            node = inner[0]
        return node

    def line(self, node: Node | None) -> int:
        return 0 if node is None else self.base_line + node.start_mark.line + 1

    def scalar(self, node: ScalarNode) -> object:
        """The value YAML gives the scalar: text, number, bool, None or a date. ValueError for what it cannot read."""
        try:
            return self.loader.construct_object(node)
        except yaml.YAMLError as error:
            raise ValueError(_reason(error)) from error
        except (LookupError, AttributeError) as error:  # PyYAML's own, of `!!bool x` and `!!timestamp x`
            raise ValueError(f"not a value of {node.tag}") from error

    def entries(self, node: MappingNode, path: str) -> Iterator[tuple[str, Node, Node]]:
        """Key text, key node and value node of each entry, merge keys resolved; keys given twice are reported."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                self.report(path, key, f"expected a plain word as key; got {describe(key)}")
            elif key.tag != _MERGE_TAG and key.value in seen:
                self.report(joined(path, key.value), key, "given twice")
            elif key.tag != _MERGE_TAG:
                seen.add(key.value)
        flat = MappingNode(node.tag, list(node.value), node.start_mark, node.end_mark)
        try:
            self.loader.flatten_mapping(flat)
        except yaml.YAMLError as error:
            self.report(path, node, _reason(error))
            return
        # Merged entries come first and lose to the mapping's own; of a key given twice the first stands.
        own = {id(key) for key, _ in node.value}
        chosen: dict[str, tuple[Node, Node]] = {}
        for key, value in flat.value:
            if isinstance(key, ScalarNode) and (key.value not in chosen or id(chosen[key.value][0]) not in own):
                chosen[key.value] = (key, value)
        for text, (key, value) in chosen.items():
            yield text, key, value


def compose(text: str, file: str, base_path: str = "", *, base_line: int = 0) -> Document:
    """The document's nodes. ConfigError where the text is not one YAML document, or is empty."""

    def fail(message: str, line: int = 0) -> ConfigError:
        return ConfigError(file, [Problem(base_path, message, line)])

    if len(text) > MAX_CHARACTERS:
        raise fail(f"larger than {MAX_CHARACTERS >> 20} MiB: not a policy")
    try:
        loader = yaml.SafeLoader(text.removeprefix("\ufeff"))
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise fail(_reason(error), base_line + mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise fail(_reason(error)) from error
    except RecursionError:
        raise fail("nested too deeply: not a policy") from None
    if root is None:
        raise fail("empty file: expected a policy; write {} to have every default")
    return Document(loader, root, base_path, base_line)


def joined(path: str, key: str) -> str:
    """`path.key`, the key in quotes where it holds more than a word."""
    word = key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'
    return f"{path}.{word}" if path else word


def describe(node: Node) -> str:
    """What stands there, for the end of a message."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if node.tag == "tag:yaml.org,2002:null":
        return "nothing"
    text = node.value if len(node.value) <= 40 else node.value[:37] + "..."
    quoted = isinstance(node, ScalarNode) and node.style in ("'", '"')
    return f"the text '{text}'" if quoted and node.value.lstrip("-").isdigit() else f"'{text}'"


def foreign_tag(node: Node) -> str | None:
    """A tag such as `!include` that nothing here understands, or None."""
    return None if node.tag.startswith(_STANDARD_TAG) else node.tag


def _reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        parts = [part for part in (error.context, error.problem) if part]
        return "not valid YAML: " + ", ".join(parts)
    return "not valid YAML: " + " ".join(str(error).split())
