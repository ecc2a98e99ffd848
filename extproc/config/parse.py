"""From YAML text to a `Policy`, or to a `ConfigError` that names every problem."""

from __future__ import annotations

from pathlib import Path

import msgspec.inspect as kinds
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode

from extproc.config.across import ACROSS
from extproc.config.convert import BAD, fields_of
from extproc.config.requests import ClassificationRule, TrustPolicy
from extproc.config.schema import DEFAULT_QUEUES, Policy
from extproc.config.source import MAX_CHARACTERS, Document, compose, describe
from extproc.errors import ConfigError, Problem

CONFIG_MAP_KEY = "policy.yaml"
"""The key of a ConfigMap's `data` under which the policy is looked for."""

_POLICY_TYPE = kinds.type_info(Policy)


def load_policy(path: str) -> Policy:
    """The policy in a file. ConfigError where it cannot be read or is not a policy."""
    return parse_policy(read_text(path), path)


def read_text(path: str) -> str:
    """A file's text. ConfigError where it cannot be read, is not UTF-8, or is far too large to be configuration."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(path, [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            path, [Problem("", f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}")]
        ) from error


def parse_policy(text: str, file: str = "policy.yaml") -> Policy:
    """The policy in `text`, bare or in a Kubernetes ConfigMap. ConfigError with every problem found and its place.

    The result has all three queues, P0 first, and its header names in lower case.
    """
    document = compose(text, file)
    if isinstance(document.root, MappingNode) and _value(document.root, "kind") is not None:
        document = _unwrapped(document, document.root, file)
    policy = _policy(document)
    if document.problems or policy is None:
        raise ConfigError(file, sorted(document.problems, key=lambda problem: problem.line))
    return _finished(policy)


def _policy(document: Document) -> Policy | None:
    """None or an unfinished policy where anything is wrong; what is wrong is in `document.problems`."""
    assert isinstance(_POLICY_TYPE, kinds.StructType)
    values = fields_of(document, _POLICY_TYPE, document.root, "")
    if values is None:
        return None
    # Sections that could not be read are left at their defaults, and the checks that would read them left out.
    bad = {name for name, value in values.items() if value is BAD}
    policy = _POLICY_TYPE.cls(**{name: value for name, value in values.items() if name not in bad})
    assert isinstance(policy, Policy)
    for needed, check in ACROSS:
        if bad.isdisjoint(needed):
            for path, message in check(policy):
                document.report_at(path, message)
    return policy


def _unwrapped(document: Document, root: MappingNode, file: str) -> Document:
    """The policy inside a ConfigMap, as a document that knows where in the file it stands."""

    def wrong(path: str, node: Node, message: str) -> ConfigError:
        return ConfigError(file, [Problem(path, message, document.line(node))])

    kind = _value(root, "kind")
    assert kind is not None
    if not isinstance(kind, ScalarNode) or kind.value != "ConfigMap":
        raise wrong("kind", kind, f"expected ConfigMap, or a policy without kind; got {describe(kind)}")
    data = _value(root, "data")
    if not isinstance(data, MappingNode):
        raise wrong("data", data or root, f"expected a mapping with the key {CONFIG_MAP_KEY}")
    inner = _value(data, CONFIG_MAP_KEY)
    path = f'data."{CONFIG_MAP_KEY}"'
    if inner is None:
        found = ", ".join(key.value for key, _ in data.value if isinstance(key, ScalarNode)) or "nothing"
        raise wrong("data", data, f"expected the key {CONFIG_MAP_KEY}; found {found}")
    if not isinstance(inner, ScalarNode):
        raise wrong(path, inner, f"expected the policy as text (write `{CONFIG_MAP_KEY}: |`); got {describe(inner)}")
    # Only a literal block keeps the lines of the file apart; its text begins below the `|`.
    line = inner.start_mark.line + 1 if inner.style == "|" else inner.start_mark.line
    return compose(inner.value, file, path, base_line=line)


def _value(node: MappingNode, key: str) -> Node | None:
    return next((value for name, value in node.value if isinstance(name, ScalarNode) and name.value == key), None)


def _finished(policy: Policy) -> Policy:
    given = {queue.priority: queue for queue in policy.queues}
    return replace(
        policy,
        queues=tuple(given.get(queue.priority, queue) for queue in DEFAULT_QUEUES),
        classification=tuple(_lowered(rule) for rule in policy.classification),
        trust=_trusted(policy.trust),
    )


def _trusted(trust: TrustPolicy) -> TrustPolicy:
    headers = tuple(dict.fromkeys(name.lower() for name in trust.headers))
    return replace(trust, headers=headers, session=trust.session and trust.session.lower())


def _lowered(rule: ClassificationRule) -> ClassificationRule:
    if rule.when.header is None:
        return rule
    header = {name.lower(): value for name, value in rule.when.header.items()}
    return replace(rule, when=replace(rule.when, header=header))
