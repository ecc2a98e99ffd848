"""Counts as they happen: what is counted where, and that no label can grow without bound."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin.labels import Values
from extproc.admin.metrics import MOST_ENGINES, Metrics
from extproc.model import End, Outcome, Priority
from extproc.ports import Observer, WireEvent


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Read back through the text format by an independent parser, as Prometheus would."""
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["llama"])


def test_it_is_an_observer(metrics: Metrics) -> None:
    observer: Observer = metrics
    assert observer is metrics


def test_a_decision_is_counted_by_pool_priority_and_outcome(metrics: Metrics) -> None:
    metrics.decided(Outcome.QUEUE_FULL, Priority.P1, "llama", waited_s=0.0)
    metrics.decided(Outcome.QUEUE_FULL, Priority.P1, "llama", waited_s=0.0)
    assert value(metrics, "extproc_requests_total", pool="llama", priority="P1", outcome="queue-full") == 2


def test_a_retry_is_counted_by_pool_and_priority(metrics: Metrics) -> None:
    assert value(metrics, "extproc_retries_total", pool="llama", priority="P1") == 0
    metrics.retried(Priority.P1, "llama")
    metrics.retried(Priority.P1, "a client's word")
    assert value(metrics, "extproc_retries_total", pool="llama", priority="P1") == 1
    assert metrics.retries()["llama"] == {"P0": 0, "P1": 1, "P2": 0}
    assert metrics.retries()["other"] == {"P1": 1}


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome.ADMITTED, "admitted"),
        (Outcome.QUEUE_TIMEOUT, "refused"),
        (Outcome.SHED, "refused"),
        (Outcome.CLIENT_GONE, "gone"),
    ],
)
def test_waits_are_told_apart_by_verdict(metrics: Metrics, outcome: Outcome, verdict: str) -> None:
    metrics.decided(outcome, Priority.P0, "llama", waited_s=3.0)
    labels = {"pool": "llama", "priority": "P0", "verdict": verdict}
    assert value(metrics, "extproc_queue_wait_seconds_sum", **labels) == 3.0
    assert value(metrics, "extproc_queue_wait_seconds_bucket", le="2.0", **labels) == 0
    assert value(metrics, "extproc_queue_wait_seconds_bucket", le="4.0", **labels) == 1


def test_what_passes_untouched_is_counted_but_has_no_wait(metrics: Metrics) -> None:
    metrics.decided(Outcome.PASSED, None, "", waited_s=0.0)
    assert value(metrics, "extproc_requests_total", pool="none", priority="none", outcome="passed") == 1
    labels = {"pool": "none", "priority": "none", "verdict": "refused"}
    assert value(metrics, "extproc_queue_wait_seconds_count", **labels) is None


def test_series_of_a_pool_exist_before_the_first_request(metrics: Metrics) -> None:
    for outcome in Outcome:
        assert value(metrics, "extproc_requests_total", pool="llama", priority="P2", outcome=outcome.value) == 0


def test_the_end_of_a_ticket_is_counted_and_timed(metrics: Metrics) -> None:
    metrics.ended(End.COMPLETED, Priority.P2, "llama", held_s=12.0)
    assert value(metrics, "extproc_tickets_ended_total", pool="llama", priority="P2", end="completed") == 1
    assert value(metrics, "extproc_hold_seconds_sum", pool="llama", priority="P2") == 12.0


def test_wire_events_and_scrapes_are_counted(metrics: Metrics) -> None:
    metrics.wire(WireEvent.LATE_RESET)
    metrics.scraped("engine-1:8000", "ok", took_s=0.002)
    assert value(metrics, "extproc_wire_events_total", event="late-reset") == 1
    assert value(metrics, "extproc_scrapes_total", engine="engine-1:8000", result="ok") == 1
    assert value(metrics, "extproc_scrape_seconds_count") == 1


def test_a_pool_that_no_policy_names_is_other_and_is_not_remembered(metrics: Metrics) -> None:
    for number in range(50):
        metrics.decided(Outcome.SHED, Priority.P0, f"made-up-{number}", waited_s=0.0)
        metrics.ended(End.IGNORED, Priority.P0, f"made-up-{number}", held_s=0.0)
    assert value(metrics, "extproc_requests_total", pool="other", priority="P0", outcome="shed") == 50
    assert b"made-up" not in generate_latest(metrics.registry)


def test_a_pool_declared_later_gets_its_own_series(metrics: Metrics) -> None:
    metrics.declare_pools(["llama", "mixtral"])
    metrics.decided(Outcome.ADMITTED, Priority.P0, "mixtral", waited_s=0.0)
    assert value(metrics, "extproc_requests_total", pool="mixtral", priority="P0", outcome="admitted") == 1


def test_engines_beyond_the_most_share_one_label(metrics: Metrics) -> None:
    for number in range(MOST_ENGINES + 10):
        metrics.scraped(f"10.0.{number // 256}.{number % 256}:8000", "ok", took_s=0.001)
    assert value(metrics, "extproc_scrapes_total", engine="other", result="ok") == 10
    assert value(metrics, "extproc_scrapes_total", engine="10.0.0.0:8000", result="ok") == 1


def test_requests_so_far_by_pool_priority_and_outcome(metrics: Metrics) -> None:
    assert metrics.requests() == {}
    metrics.decided(Outcome.ADMITTED, Priority.P0, "llama", waited_s=0.0)
    metrics.decided(Outcome.PASSED, None, "", waited_s=0.0)
    assert metrics.requests() == {"llama": {"P0": {"admitted": 1}}, "none": {"none": {"passed": 1}}}


def test_no_created_series(metrics: Metrics) -> None:
    assert b"_created" not in generate_latest(metrics.registry)


def test_label_values_without_room_are_declared_or_other() -> None:
    values = Values(["a"])
    assert [values.of(value) for value in ("a", "b", "", "none", "other")] == ["a", "other", "none", "none", "other"]
    values.declare(["b"])
    assert values.of("b") == "b"
