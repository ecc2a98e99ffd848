"""The demo's arithmetic and words: what counts as good, and that no sentence is kinder than the numbers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from extproc.model import Priority
from extproc.sim.load import End, Observation, retry_after_s
from extproc.sim.report import late_message, table, to_json, verdict
from extproc.sim.results import DemoResult, EngineReadings, RunResult, percentile, summarise, within_target
from extproc.sim.workload import Intended


def seen(
    end: End = End.COMPLETED,
    *,
    priority: Priority = Priority.P0,
    ttft_s: float | None = 0.5,
    tpot_s: float = 0.02,
    tokens: int = 101,
    retry: float | None = None,
) -> Observation:
    return Observation(
        intended=Intended(index=0, at_s=0.0, priority=priority, prompt_tokens=1, max_tokens=512, body=b""),
        end=end,
        why="",
        status=200,
        late_s=0.0,
        finished_s=1.0,
        ttft_s=ttft_s,
        last_token_s=None if ttft_s is None else ttft_s + tpot_s * (tokens - 1),
        tokens=tokens,
        retry_after_s=retry,
    )


@pytest.mark.parametrize(
    ("observation", "good"),
    [
        (seen(), True),
        (seen(ttft_s=1.01), False),
        (seen(ttft_s=1.01, priority=Priority.P1), True),
        (seen(ttft_s=3.01, priority=Priority.P1), False),
        (seen(ttft_s=9.9, priority=Priority.P2), True),
        (seen(tpot_s=0.061), False),
        (seen(tokens=1), True),
        (seen(End.FAILED), False),
        (seen(End.REJECTED, ttft_s=None, retry=2.0), False),
    ],
)
def test_within_target(observation: Observation, good: bool) -> None:
    assert within_target(observation) is good


@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=200), share=st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_a_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.99) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "3", "retry-after-ms": "2250"}, 2.25),
        ({"retry-after-ms": "2250"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "2.5"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_a_refusal_must_say_whole_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


READINGS = EngineReadings(kv_usage_mean=0.71234, kv_usage_max=0.99, preemptions=4)


def a_run(*observations: Observation) -> RunResult:
    return summarise(observations, READINGS, seconds=10.0)


def a_demo(before: RunResult, after: RunResult, late_s: float = 0.001) -> DemoResult:
    return DemoResult(3.02, 10.0, late_s, {"unprotected": before, "protected": after})


def test_a_run_adds_up() -> None:
    run = a_run(
        seen(),
        seen(ttft_s=2.0),
        seen(End.FAILED, ttft_s=None),
        seen(End.REJECTED, priority=Priority.P2, ttft_s=None, retry=2.5),
        seen(End.REJECTED, priority=Priority.P2, ttft_s=None, retry=4.0),
    )
    p0, p2 = run.classes["P0"], run.classes["P2"]
    assert (p0.sent, p0.completed, p0.within_target, p0.rejected, p0.failed) == (3, 2, 1, 0, 1)
    assert (p0.ttft_p50_s, p0.ttft_p99_s, p0.tpot_p50_s) == (0.5, 2.0, 0.02)
    assert (p2.sent, p2.rejected, p2.ttft_p50_s) == (2, 2, None)
    assert run.goodput_tokens_per_s == 10.1
    assert (run.retry_after_s.min, run.retry_after_s.max, run.retry_after_s.distinct) == (2.5, 4.0, 2)


def test_the_json_has_exactly_the_promised_shape() -> None:
    written = json.loads(to_json(a_demo(a_run(seen()), a_run(seen()))))
    assert set(written) == {"offered_ratio", "seconds", "sent_late_p99_s", "runs"}
    assert set(written["runs"]) == {"unprotected", "protected"}
    for run in written["runs"].values():
        assert set(run) == {
            *("classes", "goodput_tokens_per_s", "preemptions", "kv_usage_mean", "kv_usage_max", "retry_after_s"),
        }
        assert set(run["retry_after_s"]) == {"min", "max", "distinct"}
        assert set(run["classes"]) == {"P0", "P1", "P2"}
        for result in run["classes"].values():
            assert set(result) == {
                *("sent", "completed", "within_target", "rejected", "failed"),
                *("ttft_p50_s", "ttft_p99_s", "tpot_p50_s"),
            }
            assert result["sent"] == result["completed"] + result["rejected"] + result["failed"]


def test_the_verdict_names_what_was_lost() -> None:
    good = a_run(*[seen()] * 99, seen(End.REJECTED, ttft_s=None, retry=2.0))
    bad = a_run(*[seen(ttft_s=5.0)] * 3, seen(End.FAILED, ttft_s=None), seen())
    assert verdict(a_demo(bad, good)) == (
        "At 3.0 x capacity extproc kept 99.0% of P0 within target (without it: 20.0%), with 99.0 x the goodput; "
        "nothing failed, and 1 requests were refused with a Retry-After."
    )
    assert "1 requests FAILED" in verdict(a_demo(good, bad))
    assert "where there was none" in verdict(a_demo(a_run(seen(End.FAILED)), good))


def test_a_late_generator_is_told_and_a_punctual_one_is_not() -> None:
    run = a_run(seen())
    assert late_message(a_demo(run, run, late_s=0.050)) == ""
    assert "p99 51 ms" in late_message(a_demo(run, run, late_s=0.051))


def test_the_table_is_plain_where_there_is_no_terminal() -> None:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(table(a_demo(a_run(seen()), a_run(seen(End.FAILED, ttft_s=None)))))
    assert "\x1b" not in capture.get()
    assert "0.50 s / 0.50 s" in capture.get()
