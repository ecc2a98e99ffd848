"""Warnings of `extproc check` about policies that are valid but perhaps not meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.check import FileKind, check_files

ENGINES = 'pools: [{engines: {static: ["e:1"]}}]\n'


@pytest.mark.parametrize(
    ("policy", "warnings"),
    [
        (ENGINES, []),
        (
            "{}",
            [
                "pools[0].engines.static: none: no metrics are read, and the limit stays at failure.unknownLimit "
                "(32 requests)"
            ],
        ),
        ("pools: [{fixed: {limit: {requests: 8}}}]", []),
        (
            ENGINES + "envoy: {maxMessageTimeout: 10s}",
            [
                "queues[P1].timeout: 15s is longer than envoy.maxMessageTimeout - 1s: waits end after 9s",
                "queues[P2].timeout: 60s is longer than envoy.maxMessageTimeout - 1s: waits end after 9s",
            ],
        ),
        (
            ENGINES
            + "queues: [{priority: P2, name: b, maxQueueSize: 1, timeout: 1s, reservedSlots: 4, maxQueueBytes: 1KiB}]",
            [
                "queues[P2].maxQueueBytes: 1KiB is less than one body of body.maxBytes (1MiB): "
                "such a request can never wait",
                "queues[P2].reservedSlots: nothing is below P2: these slots are kept from nobody",
            ],
        ),
        (
            'pools: [{engines: {static: ["e:1"]}, override: {rejection: 0.5}}]',
            ["pools[0].override: in force: the controllers are not heard"],
        ),
        (
            "pools: [{fixed: {limit: {requests: 8}}, targets: {P0: {ttft: 1s}}}]",
            ["pools[0].targets: kept by controller 'fused' alone, which this pool has not"],
        ),
        (ENGINES.replace("}]", ", targets: {P0: {ttft: 1s}}}]"), []),
        (
            ENGINES + "tenants: [{name: a}]\nclassification: "
            "[{when: {tenant: a}, priority: P0}, {when: {tenant: b}, priority: P0}, {when: {tenant: default}, priority: P2}]",
            [
                "classification[1].when.tenant: 'b' is no tenant of this policy, "
                "and no trusted header or metadata names others"
            ],
        ),
        (ENGINES + "trust: {headers: [x-tenant-id]}\nclassification: [{when: {tenant: b}, priority: P0}]", []),
    ],
)
def test_warnings(tmp_path: Path, policy: str, warnings: list[str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    (report,) = check_files([str(file)])
    assert (report.kind, report.errors) == (FileKind.POLICY, ())
    assert [str(problem) for problem in report.warnings] == warnings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues: &a [*a]", "aliases"),
        ("&a [*a]", "aliases"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
            "aliases",
        ),
        ("[" * 3000, "not valid YAML"),
        ("queues: !!timestamp x", "not valid YAML"),
        ('queues: !!int ""', "not valid YAML"),
    ],
    ids=["its own item", "all its own item", "laughs", "deep", "no timestamp", "no number"],
)
def test_a_file_made_to_break_the_check_is_refused_and_does_not_hang(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    [report] = check_files([str(file)])
    assert not report.ok
    assert said in report.errors[0].message
