"""Policies that are right: what is read from them, and what is filled in."""

from __future__ import annotations

import pytest
import yaml
from msgspec import UNSET

from extproc.config import (
    ControllerName,
    DropPolicy,
    LimitPolicy,
    Policy,
    TargetPolicy,
    parse_policy,
)
from extproc.config.plain import to_plain
from extproc.config.schema import DEFAULT_QUEUES
from extproc.config.section import Bytes, Seconds
from extproc.model import Priority

QUEUES = """\
queues:
  - {priority: 0, name: realtime-interactive, maxQueueSize: 200, timeout: 8s,  dropPolicy: tail}
  - {priority: 1, name: agent-workflow,       maxQueueSize: 500, timeout: 15s, dropPolicy: early-drop-on-pressure}
  - {priority: 2, name: batch-extraction,     maxQueueSize: 1000, timeout: 60s, dropPolicy: fast-reject}
"""
REST = """\
pools:
  - name: llama-70b
    models: [llama-3-70b]                      # default: every model
    engines: {kind: vllm, static: ["10.0.0.1:8000", "10.0.0.2:8000"], scrapeInterval: 100ms}
    controllers: [fixed, watermark]
    fixed: {limit: auto}                       # or {requests: 64} or {tokens: 200000}
    watermark: {high: 0.80, panic: 0.92, maxWaitingPerEngine: 20}
    targets: {P0: {ttft: 1s, tpot: 60ms}, P1: {ttft: 3s}, P2: {ttft: 10s}}
classification:
  - {when: {path: /v1/embeddings}, priority: P2}
  - {when: {header: {x-team: research}}, priority: P1, pool: llama-70b}
trust: {headers: [x-priority]}
retryAfter: {base: 3s, jitter: 0.2, min: 1s, max: 60s}
"""


def config_map(policy: str) -> str:
    body = "".join(f"    {line}\n" for line in policy.splitlines())
    return (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gateway-overload-policy}\ndata:\n  policy.yaml: |\n" + body
    )


def test_the_queues_alone_are_a_policy_and_are_the_defaults() -> None:
    assert parse_policy(QUEUES) == Policy(queues=DEFAULT_QUEUES) == parse_policy("{}")


def test_both_blocks_together() -> None:
    policy = parse_policy(QUEUES + REST)
    (pool,) = policy.pools
    assert pool.models == ("llama-3-70b",)
    assert pool.engines.static == ("10.0.0.1:8000", "10.0.0.2:8000")
    assert pool.controllers == (ControllerName.FIXED, ControllerName.WATERMARK)
    assert pool.fixed.limit == "auto"
    assert pool.targets[Priority.P0] == TargetPolicy(ttft_s=Seconds(1), tpot_s=Seconds(0.06))
    first, second = policy.classification
    assert (first.when.path, first.priority, first.pool) == ("/v1/embeddings", Priority.P2, UNSET)
    assert (second.when.header, second.priority, second.pool) == ({"x-team": "research"}, Priority.P1, "llama-70b")
    assert policy.trust.headers == ("x-priority",)
    assert policy == parse_policy(REST + QUEUES)


@pytest.mark.parametrize("policy", [QUEUES, REST, QUEUES + REST, "{}"])
def test_a_config_map_is_read_as_it_is(policy: str) -> None:
    assert parse_policy(config_map(policy)) == parse_policy(policy)


def test_queues_come_in_order_of_priority_and_missing_ones_are_filled_in() -> None:
    policy = parse_policy("queues: [{priority: batch, name: slow, maxQueueSize: 0, timeout: 1.5m}]")
    assert [queue.priority for queue in policy.queues] == [Priority.P0, Priority.P1, Priority.P2]
    assert policy.queues[:2] == DEFAULT_QUEUES[:2]
    slow = policy.queues[2]
    assert (slow.name, slow.max_queue_size, slow.timeout_s, slow.drop_policy) == ("slow", 0, 90.0, DropPolicy.TAIL)


@pytest.mark.parametrize("word", ["0", "P0", "realtime", '"0"', '"P0"'])
def test_a_priority_has_many_words(word: str) -> None:
    policy = parse_policy(
        f"classification: [{{when: {{path: /a}}, priority: {word}}}]\npools: [{{targets: {{{word}: {{}}}}}}]"
    )
    assert policy.classification[0].priority is Priority.P0
    assert policy.pools[0].targets == {Priority.P0: TargetPolicy()}


def test_header_names_are_lowered() -> None:
    policy = parse_policy(
        "classification: [{when: {header: {X-Team: A}}, bypass: true}]\ntrust: {headers: [X-Priority]}"
    )
    assert policy.classification[0].when.header == {"x-team": "A"}
    assert policy.trust.headers == ("x-priority",)


@pytest.mark.parametrize(
    ("pool", "controllers"),
    [
        ("{}", ["fused"]),
        ("{vegas: {alpha: 0.2}}", ["fused"]),
        ("{fixed: {limit: {requests: 4}}}", ["fixed", "watermark"]),
        ("{watermark: {high: 0.8}}", ["fixed", "watermark"]),
        ("{fixed: {limit: {requests: 4}}, controllers: [fused]}", ["fused"]),
    ],
)
def test_a_limit_that_is_written_down_holds(pool: str, controllers: list[str]) -> None:
    assert list(parse_policy(f"pools: [{pool}]").pools[0].controllers) == controllers


def test_a_limit_is_auto_or_numbers() -> None:
    one = "{name: a, models: [a], fixed: {limit: {requests: 64}}}"
    policy = parse_policy(f"pools: [{one}, {{name: b, models: [b], fixed: {{limit: {{tokens: 9}}}}}}]")
    assert [pool.fixed.limit for pool in policy.pools] == [LimitPolicy(requests=64), LimitPolicy(tokens=9)]


def test_values_have_the_types_of_the_schema() -> None:
    policy = parse_policy("retryAfter: {base: 3}\nbody: {maxBytes: 2MiB}\nfailure: {rejection: 1}")
    assert isinstance(policy.retry_after.base_s, Seconds)
    assert isinstance(policy.body.max_bytes, Bytes)
    assert policy.body.max_bytes == 2 << 20
    assert isinstance(policy.failure.rejection, float)


def test_yaml_anchors_and_merges_work_and_the_mappings_own_values_win() -> None:
    policy = parse_policy(
        "pools:\n"
        "- {name: a, models: [x], watermark: &w {high: 0.5, panic: 0.7}}\n"
        "- {name: b, models: [y], watermark: {panic: 0.6, <<: *w}}\n"
    )
    assert [(pool.watermark.high, pool.watermark.panic) for pool in policy.pools] == [(0.5, 0.7), (0.5, 0.6)]


def test_a_pool_for_every_model_and_one_that_a_rule_names_may_stand_together() -> None:
    policy = parse_policy("pools: [{name: a}, {name: b}]\nclassification: [{when: {path: /b}, pool: b}]")
    assert [pool.name for pool in policy.pools] == ["a", "b"]


@pytest.mark.parametrize(
    "text", ["{}", QUEUES, QUEUES + REST, "pools: [{override: {rejection: 1, limit: {tokens: 7}}}]"]
)
def test_plain_data_reads_back_to_the_same_policy(text: str) -> None:
    policy = parse_policy(text)
    assert parse_policy(yaml.safe_dump(to_plain(policy))) == policy


def test_plain_data_uses_the_words_of_the_file() -> None:
    plain = to_plain(parse_policy(QUEUES + REST))
    assert plain["trust"] == {"headers": ["x-priority"]}
    assert plain["envoy"] == {"messageTimeout": "2s", "maxMessageTimeout": "300s"}
    assert plain["classification"] == [
        {"when": {"path": "/v1/embeddings"}, "priority": "P2", "bypass": False},
        {"when": {"header": {"x-team": "research"}}, "priority": "P1", "pool": "llama-70b", "bypass": False},
    ]
