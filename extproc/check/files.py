"""What each file is, and what is wrong with it, alone and beside the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import yaml
from msgspec.structs import fields

from extproc.check.envoy_around import check_around
from extproc.check.envoy_filter import check_filter
from extproc.check.envoy_view import Envoy, view
from extproc.check.policy import check_policy
from extproc.check.report import FileKind, FileReport, Finding, error, report
from extproc.check.tree import Tree
from extproc.config.parse import parse_policy, read_text
from extproc.config.schema import Policy
from extproc.config.source import compose
from extproc.errors import ConfigError, Problem

_POLICY_KEYS = frozenset(field.encode_name for field in fields(Policy))
_ENVOY_KEYS = ("static_resources", "dynamic_resources", "http_filters", "clusters", "listeners")
_MOST_VALUES = 2_000_000
"""More than a file of the size that is read can hold without aliases."""
_NEITHER = "neither a policy (queues, pools, ...) nor an Envoy configuration (static_resources, http_filters, ...)"


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    kind: FileKind
    text: str = ""
    problems: tuple[Problem, ...] = ()
    policy: Policy | None = None
    envoy: Envoy | None = None


def check_files(paths: Sequence[str]) -> list[FileReport]:
    """One report per path, in order. Envoy files are compared with every valid policy among the paths. Never raises."""
    files = [_read(path) for path in paths]
    policies = [file.policy for file in files if file.policy is not None]
    return [_judged(file, policies) for file in files]


def _read(path: str) -> _File:
    kind = FileKind.UNKNOWN
    try:
        text = read_text(path)
        documents = _documents(text, path)
        kind = _kind(documents)
        if kind is FileKind.POLICY:
            return _File(path, kind, policy=parse_policy(text, path))
    except ConfigError as problem:
        return _File(path, kind, problems=problem.problems)
    return _File(path, kind, text, envoy=view(documents) if kind is FileKind.ENVOY else None)


def _judged(file: _File, policies: Sequence[Policy]) -> FileReport:
    if file.problems:
        return FileReport(file.path, file.kind, file.problems)
    if file.policy is not None:
        return report(file.path, file.kind, check_policy(file.policy))
    if file.envoy is None:
        return report(file.path, file.kind, [error("", _NEITHER)])
    beside: Sequence[Policy | None] = policies or [None]
    findings = [finding for policy in beside for finding in check_envoy(file.envoy, policy)]
    return report(file.path, file.kind, _with_lines(findings, file.text) if findings else [])


def _with_lines(findings: list[Finding], text: str) -> list[Finding]:
    """Envoy's paths are long; a line is quicker to find. Files of several documents go without."""
    try:
        document = compose(text, "")
    except ConfigError:
        return findings

    def placed(problem: Problem) -> Problem:
        return replace(problem, line=document.line(document.deepest(problem.path)) if problem.path else 0)

    return [Finding(finding.severity, placed(finding.problem)) for finding in findings]


def check_envoy(envoy: Envoy, policy: Policy | None) -> Iterator[Finding]:
    """Everything about one Envoy file, beside one policy or alone."""
    if not envoy.ext_procs:
        yield error("", "no ext_proc filter: extproc would not be asked")
    for ext_proc in envoy.ext_procs:
        yield from check_filter(envoy, ext_proc, policy)
    yield from check_around(envoy, policy)


def _kind(documents: Sequence[Tree]) -> FileKind:
    first = documents[0]
    mapping = first.value if isinstance(first.value, dict) else None
    if any(document.get(key).given for document in documents for key in _ENVOY_KEYS):
        return FileKind.ENVOY
    if any(tree.type_name() == "ExternalProcessor" for document in documents for tree in document.walk()):
        return FileKind.ENVOY
    # An empty mapping is a policy of defaults; with a ConfigMap the parser says what is missing inside.
    if mapping is not None and (not mapping or mapping.get("kind") == "ConfigMap" or mapping.keys() & _POLICY_KEYS):
        return FileKind.POLICY
    return FileKind.UNKNOWN


def _documents(text: str, file: str) -> list[Tree]:
    """The documents of a file as plain data. ConfigError where it is neither JSON nor YAML, or empty."""
    try:
        # JSON first: indented with tabs it is not YAML.
        values: list[object] = [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        try:
            values = [value for value in yaml.safe_load_all(text) if value is not None]
        except yaml.MarkedYAMLError as problem:
            line = problem.problem_mark.line + 1 if problem.problem_mark else 0
            raise ConfigError(file, [Problem("", f"not valid YAML: {problem.problem}", line)]) from problem
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as problem:
            raise ConfigError(file, [Problem("", f"not valid YAML: {' '.join(str(problem).split())}")]) from problem
    if not values:
        raise ConfigError(file, [Problem("", "empty file")])
    if _unfold_too_far(values):
        raise ConfigError(file, [Problem("", "its aliases contain themselves, or unfold to millions of values")])
    return [Tree(f"[{i}]" if len(values) > 1 else "", value) for i, value in enumerate(values)]


def _unfold_too_far(values: list[object]) -> bool:
    """YAML's aliases make trees of any size, endless ones too, of a few lines; whoever walks them must know the end."""
    pending, seen = list(values), 0
    while pending and seen + len(pending) <= _MOST_VALUES:
        value = pending.pop()
        seen += 1
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return bool(pending)
