"""Gauges read from a snapshot: values under the right labels, the unknown absent, a bug costs only the gauges."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin.gauges import SnapshotCollector
from extproc.admin.metrics import Metrics
from extproc.admin.source import SafeSource
from tests.support.snapshots import POOL, GivenSource, service


def scrape(source: GivenSource) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values sorted by label name) -> value."""
    metrics = Metrics()
    metrics.attach(SnapshotCollector(SafeSource(source)))
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        (s.name, tuple(s.labels[label] for label in sorted(s.labels))): float(s.value)
        for family in families
        for s in family.samples
    }


def test_a_pool_per_priority() -> None:
    seen = scrape(GivenSource())
    assert seen["extproc_pool_limit_tokens", ("llama", "P1")] == 2500
    assert seen["extproc_pool_limit_slots", ("llama", "P0")] == math.inf
    assert seen["extproc_pool_reserved_slots", ("llama", "P0")] == 2
    assert seen["extproc_pool_in_use_tokens", ("llama", "P0")] == 1000
    assert seen["extproc_pool_waiting_requests", ("llama", "P1")] == 2
    assert seen["extproc_pool_waiting_tokens", ("llama", "P1")] == 800
    assert seen["extproc_pool_queue_size_requests", ("llama", "P2")] == 1000
    assert seen["extproc_pool_oldest_wait_seconds", ("llama", "P1")] == 1.5
    assert seen["extproc_pool_oldest_wait_seconds", ("llama", "P0")] == 0
    assert seen["extproc_pool_rejection_ratio", ("llama", "P2")] == 0.75


def test_a_pool_as_a_whole() -> None:
    seen = scrape(GivenSource())
    assert seen["extproc_pool_held_tokens", ("llama",)] == 1700
    assert seen["extproc_pool_ghost_slots", ("llama",)] == 1
    assert seen["extproc_pool_drain_tokens_per_second", ("llama",)] == 250
    assert seen["extproc_pool_state_age_seconds", ("llama",)] == 0.5
    assert seen["extproc_pool_engines", ("llama",)] == 2
    assert seen["extproc_pool_engines_reporting", ("llama",)] == 1


def test_an_engine_that_never_answered_has_no_values_not_zeros() -> None:
    seen = scrape(GivenSource())
    assert seen["extproc_engine_kv_usage_ratio", ("engine-1:8000", "llama")] == 0.5
    assert seen["extproc_engine_reporting", ("engine-2:8000", "llama")] == 0
    assert ("extproc_engine_kv_usage_ratio", ("engine-2:8000", "llama")) not in seen
    assert ("extproc_engine_sample_age_seconds", ("engine-2:8000", "llama")) not in seen


def test_an_unknown_drain_rate_is_absent() -> None:
    seen = scrape(GivenSource(service(pools=(replace(POOL, drain_per_s=None),))))
    assert ("extproc_pool_drain_tokens_per_second", ("llama",)) not in seen


def test_the_service_itself() -> None:
    refused = replace(service().policy, last_error="queues[0].timeout: ...")
    seen = scrape(GivenSource(service(policy=refused, draining=True)))
    assert seen["extproc_policy_info", ("3f2a9c1b",)] == 1
    assert seen["extproc_policy_last_reload_successful", ()] == 0
    assert seen["extproc_draining", ()] == 1
    assert seen["extproc_streams", ()] == 5
    assert seen["extproc_event_loop_lag_seconds", ()] == 0.002


def test_a_bug_in_the_state_costs_the_gauges_only_and_is_counted() -> None:
    seen = scrape(GivenSource(ZeroDivisionError("no")))
    assert seen["extproc_snapshot_errors_total", ()] == 1
    assert not any(name.startswith("extproc_pool_") for name, _ in seen)
    assert any(name.startswith("extproc_wire_events") for name, _ in seen)


def test_the_error_is_forgotten_when_the_state_reads_well_again() -> None:
    given = GivenSource(ZeroDivisionError("no"))
    source = SafeSource(given)
    assert source.take() is None
    failed = source.last_error
    given.state = service()
    assert source.take() is given.state
    assert (failed, source.last_error, source.errors) == ("ZeroDivisionError: no", None, 1)
