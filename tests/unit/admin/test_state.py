"""The `/state` document and the `/readyz` verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from extproc.admin.state import readiness, state_document
from extproc.model import Allowance
from extproc.snapshots import ServiceSnapshot, ShareSnapshot, TenantSnapshot, WireSnapshot
from tests.support.snapshots import ENGINES, POOL, SERVICE, service


def document(snapshot: ServiceSnapshot = SERVICE) -> Any:
    """Through JSON and back by an independent parser that refuses Infinity and NaN."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    made = state_document(
        snapshot,
        wall_s=1_700_000_060.0,
        requests={"llama": {"P1": {"admitted": 7, "shed": 3}}},
        retries={"llama": {"P1": 2}},
    )
    return json.loads(msgspec.json.encode(made), parse_constant=refuse)


def test_the_service_at_the_top() -> None:
    seen = document()
    assert (seen["uptime_s"], seen["time"], seen["draining"]) == (60.0, 1_700_000_060.0, False)
    assert seen["wire"] == {"address": "127.0.0.1:50051", "serving": True, "streams": 5}
    assert seen["policy"]["hash"] == "3f2a9c1b"
    assert seen["warnings"] == []


def test_a_pool() -> None:
    pool = document()["pools"][0]
    assert pool["name"] == "llama"
    assert pool["limit"] == {"tokens": 3000.0, "slots": None}, "no limit is null"
    assert pool["held"] == {"tokens": 1700.0, "slots": 4.0}
    assert pool["state_age_s"] == 0.5
    assert pool["engines_reporting"] == 1
    assert pool["expected_output_tokens"] is None
    assert pool["expected_ttft_s"] is None


def test_a_priority_of_a_pool() -> None:
    assert document()["pools"][0]["priorities"]["P1"] == {
        "queue": "agent-workflow",
        "waiting": 2,
        "queue_size": 500,
        "waiting_load": {"tokens": 800.0, "slots": 2.0},
        "oldest_wait_s": 1.5,
        "retry_after_s": 7.5,
        "in_use": {"tokens": 500.0, "slots": 1.0},
        "limit": {"tokens": 2500.0, "slots": None},
        "reserved": {"tokens": 0.0, "slots": 0.0},
        "rejection": 0.1,
        "requests": {"admitted": 7, "shed": 3},
        "retries": 2,
        "amplification": 1.2,
    }


def test_where_nobody_came_nothing_is_amplified() -> None:
    none = document()["pools"][0]["priorities"]["P0"]
    assert (none["retries"], none["amplification"]) == (0, None)


def test_engines_with_age_values_and_last_error() -> None:
    first, second = document()["pools"][0]["engines"]
    assert (first["engine"], first["reporting"], first["age_s"], first["kv_usage"]) == ("engine-1:8000", True, 0.1, 0.5)
    assert first["ttft_p95_s"] is None
    assert (second["kv_usage"], second["running"], second["age_s"]) == (None, None, None)
    assert (second["result"], second["last_error"]) == ("refused", "connection refused")
    assert first.keys() == second.keys()


def test_tenants_that_have_a_quota() -> None:
    quota = Allowance(tokens_per_s=1000, burst_s=30)
    seen = document(service(tenants=(TenantSnapshot("team-a", quota, tokens_left=7500, requests_left=math.inf),)))
    assert seen["tenants"] == [
        {
            "name": "team-a",
            "tokens_per_minute": 60000.0,
            "requests_per_minute": None,
            "burst_s": 30.0,
            "tokens_left": 7500.0,
            "requests_left": None,
        }
    ]
    assert document()["tenants"] == []


def test_a_quota_is_said_as_it_was_written() -> None:
    """It said 1000000.0000000001."""
    quota = Allowance(tokens_per_s=1_000_000 / 60, requests_per_s=7 / 60)
    [tenant] = document(service(tenants=(TenantSnapshot("team-a", quota, tokens_left=1, requests_left=1),)))["tenants"]
    assert (tenant["tokens_per_minute"], tenant["requests_per_minute"]) == (1_000_000, 7)


def test_numbers_that_json_lacks_are_null() -> None:
    broken = replace(POOL, state=structs.replace(POOL.state, saturation=float("nan")))
    assert document(service(pools=(broken,), loop_lag_s=float("inf")))["pools"][0]["saturation"] is None


def wire(**changes: object) -> WireSnapshot:
    return replace(SERVICE.wire, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("snapshot", "ready", "says"),
    [
        (service(), True, "serving"),
        (service(wire=wire(serving=False)), False, "not listening yet"),
        (service(draining=True), False, "draining"),
        (service(draining=True, wire=wire(serving=False)), False, "draining"),
    ],
)
def test_ready_means_the_wire_serves(snapshot: ServiceSnapshot, ready: bool, says: str) -> None:
    verdict = readiness(snapshot)
    assert verdict.ready is ready
    assert verdict.document["components"]["wire"] == {"ok": ready, "detail": says}  # type: ignore[index,call-overload]


def test_silent_engines_are_a_detail_and_a_warning_but_not_unready() -> None:
    silent = replace(POOL, engines=tuple(replace(engine, reporting=False) for engine in ENGINES))
    verdict = readiness(service(pools=(silent,)))
    assert verdict.ready
    assert verdict.document["components"]["engines"] == {"llama": {"ok": False, "detail": "0 of 2 reporting"}}  # type: ignore[index,call-overload]
    assert verdict.document["warnings"] == ["pool llama: no engine reports, admission is by the failure rules"]


def test_a_pool_without_engines_is_no_trouble() -> None:
    verdict = readiness(service(pools=(replace(POOL, engines=()),)))
    assert verdict.document["components"]["engines"] == {"llama": {"ok": True, "detail": "none configured"}}  # type: ignore[index,call-overload]
    assert verdict.document["warnings"] == []


def test_a_pool_that_leaves_is_shown_but_its_engines_may_be_gone() -> None:
    silent = tuple(replace(engine, reporting=False) for engine in ENGINES)
    snapshot = service(pools=(POOL, replace(POOL, name="old", leaving=True, engines=silent)))
    assert [(pool["name"], pool["leaving"]) for pool in document(snapshot)["pools"]] == [
        ("llama", False),
        ("old", True),
    ]
    assert list(readiness(snapshot).document["components"]["engines"]) == ["llama"]  # type: ignore[index,call-overload,arg-type]
    assert readiness(snapshot).document["warnings"] == []


def test_a_refused_policy_file_is_a_warning_but_not_unready() -> None:
    refused = replace(SERVICE.policy, last_error="policy.yaml: queues[0].timeout: expected a duration")
    verdict = readiness(service(policy=refused))
    assert verdict.ready
    assert verdict.document["components"]["policy"] == {  # type: ignore[index,call-overload]
        "ok": False,
        "detail": "policy.yaml: queues[0].timeout: expected a duration",
    }
    assert verdict.document["warnings"] == ["policy.yaml was refused, the last good policy is in force"]


def test_a_policy_that_other_replicas_do_not_go_by_is_told() -> None:
    share = ShareSnapshot(replicas=3, leading=False, cut_off=False, differing=2)
    verdict = readiness(service(pools=(replace(POOL, share=share),)))
    told = "pool llama: 2 of 3 replicas go by another policy"
    assert verdict.ready
    components = verdict.document["components"]
    assert components["policy"] == {"ok": False, "detail": f"in force, but {told}"}  # type: ignore[index,call-overload]
    assert verdict.document["warnings"] == [told]


def test_readiness_tells_why_a_replica_is_cut_off_and_what_a_process_that_stands_by_knows() -> None:
    cut_off = ShareSnapshot(replicas=2, leading=False, cut_off=True, trouble="auth")
    verdict = readiness(service(pools=(replace(POOL, share=cut_off),)))
    assert "cannot be asked (auth)" in str(verdict.document["warnings"])
    stands_by = ShareSnapshot(replicas=1, leading=False, cut_off=False, stands_by=True)
    verdict = readiness(service(pools=(replace(POOL, share=stands_by, engines=()),)))
    components = verdict.document["components"]
    assert components["engines"]["llama"] == {"ok": True, "detail": "another process watches them"}  # type: ignore[index,call-overload]


def test_warnings_of_the_wire_are_shown_in_both_places() -> None:
    warned = service(wire=wire(warnings=("Envoy's mode lacks response trailers",)))
    assert readiness(warned).document["warnings"] == ["Envoy's mode lacks response trailers"]
    assert document(warned)["warnings"] == ["Envoy's mode lacks response trailers"]
