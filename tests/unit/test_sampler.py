"""Rates, means, percentiles and stillness out of cumulative readings."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from extproc.engines.sampler import MAX_GAP_S, WINDOW_S, Histogram, Reading, Sampler
from extproc.fleet import EngineSample

INF = math.inf


def _reading(t: float, **fields: float) -> Reading:
    """An engine that makes 100 tokens a second, ends a request of 50 each second, preempts one every other second."""
    base = Reading(
        kv_usage=0.5,
        running=4,
        waiting=0,
        preemptions=t / 2,
        prompt_tokens=200 * t,
        generation_tokens=100 * t,
        ttft=Histogram(t, 0.3 * t, (0.1, 0.5, INF), (0.0, t, t)),
        tpot=Histogram(100 * t, 2.0 * t, (0.01, 0.03, INF), (0.0, 100 * t, 100 * t)),
        output=Histogram(t, 50 * t),
    )
    return replace(base, **fields)


def _sampler() -> Sampler:
    return Sampler("a:1", stale_after_s=1.0)


def _run(sampler: Sampler, until: float, *, start: float = 0.0, step: float = 0.1) -> EngineSample:
    for i in range(round((until - start) / step) + 1):
        sample = sampler.sample(start + i * step, _reading(start + i * step))
    return sample


def test_the_first_reading_has_gauges_but_no_rates() -> None:
    sample = _sampler().sample(7.0, _reading(7))
    assert (sample.engine, sample.at, sample.kv_usage, sample.running) == ("a:1", 7.0, 0.5, 4)
    assert sample.generation_tokens_per_s is None
    assert sample.ttft_mean_s is None
    assert not sample.frozen


def test_rates_and_means_over_the_window() -> None:
    sample = _run(_sampler(), 60)
    assert sample.generation_tokens_per_s == pytest.approx(100)
    assert sample.prompt_tokens_per_s == pytest.approx(200)
    assert sample.preemptions_per_s == pytest.approx(0.5)
    assert sample.mean_output_tokens == pytest.approx(50)
    assert sample.ttft_mean_s == pytest.approx(0.3)
    assert sample.tpot_mean_s == pytest.approx(0.02)
    assert sample.iteration_s == pytest.approx(0.02)
    assert sample.ttft_p95_s == pytest.approx(0.1 + 0.95 * 0.4)
    assert sample.tpot_p95_s == pytest.approx(0.01 + 0.95 * 0.02)


def test_the_step_time_is_that_of_the_last_second() -> None:
    """Half of the window is slow steps; a second later they are all of it."""
    sampler = _sampler()
    _run(sampler, 10)
    slow = _reading(10).tpot
    assert slow is not None
    for i in range(1, 13):
        tpot = Histogram(slow.count + 10 * i, slow.sum + 0.5 * i)
        sample = sampler.sample(10 + i / 10, replace(_reading(10 + i / 10), tpot=tpot))
    assert sample.iteration_s == pytest.approx(0.05)
    assert sample.tpot_mean_s is not None
    assert sample.tpot_mean_s < 0.04


def test_one_short_warm_up_is_not_the_mean_of_answers() -> None:
    sampler = _sampler()
    sampler.sample(0, _reading(0))
    for t in range(1, 100):
        sample = sampler.sample(float(t), _reading(float(t), output=Histogram(1, 1)))  # type: ignore[arg-type]
    assert sample.mean_output_tokens is None


def test_rare_answers_are_waited_for() -> None:
    """Eight answers in forty seconds tell as much as eight in five."""
    sampler = _sampler()
    for t in range(60):
        answers = Histogram(t // 5, 700.0 * (t // 5))
        sample = sampler.sample(float(t), _reading(float(t), output=answers))  # type: ignore[arg-type]
    assert sample.mean_output_tokens == 700


def test_only_the_last_seconds_count() -> None:
    sampler = _sampler()
    _run(sampler, 10)
    for i in range(1, 80):
        sample = sampler.sample(10 + i / 10, _reading(10.0))
    assert i / 10 > WINDOW_S + 1
    assert sample.generation_tokens_per_s == 0.0
    assert sample.ttft_mean_s is None, "no request in the window: missing, not zero"


@pytest.mark.parametrize("step", [0.05, 0.1, 1.0, 5.0])
def test_what_is_kept_does_not_grow_with_time_or_rate(step: float) -> None:
    sampler = _sampler()
    sample = _run(sampler, 100, step=step)
    assert len(sampler._kept) <= 25
    assert sample.generation_tokens_per_s == pytest.approx(100)


def test_a_restart_begins_a_new_window() -> None:
    sampler = _sampler()
    _run(sampler, 10)
    sample = sampler.sample(10.1, _reading(0))
    assert sample.generation_tokens_per_s is None
    assert sample.ttft_mean_s is None
    for i in range(1, 20):
        sample = sampler.sample(10.1 + i / 10, _reading(i / 10))
    assert sample.generation_tokens_per_s == pytest.approx(100)


def test_a_long_gap_begins_a_new_window() -> None:
    sampler = _sampler()
    _run(sampler, 10)
    assert sampler.sample(10 + MAX_GAP_S + 1, _reading(31)).generation_tokens_per_s is None


def test_a_counter_that_goes_missing_is_missing() -> None:
    sampler = _sampler()
    _run(sampler, 10)
    reading = replace(_reading(10.1), generation_tokens=None, ttft=None)
    sample = sampler.sample(10.1, reading)
    assert sample.generation_tokens_per_s is None
    assert sample.ttft_mean_s is None
    assert sample.prompt_tokens_per_s == pytest.approx(200)


def _stand_still(reading: Reading, seconds: float, sampler: Sampler | None = None) -> bool:
    sampler = sampler or _sampler()
    for i in range(round(seconds * 10) + 1):
        sample = sampler.sample(i / 10, reading)
    return sample.frozen


def test_requests_that_run_while_nothing_moves_are_frozen_content() -> None:
    assert not _stand_still(_reading(5), 0.9)
    assert _stand_still(_reading(5), 1.0)
    assert _stand_still(_reading(5, running=0, waiting=6), 1.0), "waiting without running: a hung scheduler"


def test_an_idle_engine_is_not_frozen() -> None:
    assert not _stand_still(_reading(5, running=0), 60)


def test_without_token_counters_nothing_is_called_frozen() -> None:
    reading = replace(_reading(5), prompt_tokens=None, generation_tokens=None)
    assert not _stand_still(reading, 60)


def test_a_long_prefill_is_not_frozen() -> None:
    """Seconds of prefill count no token, but the cache fills up."""
    sampler = _sampler()
    for i in range(60):
        assert not sampler.sample(i / 10, _reading(5, kv_usage=i / 100)).frozen


def test_thaws_with_the_first_token() -> None:
    sampler = _sampler()
    assert _stand_still(_reading(5), 3.0, sampler)
    assert not sampler.sample(3.1, _reading(5.1)).frozen


@pytest.mark.parametrize(
    ("q", "bounds", "up_to", "expected"),
    [
        (0.95, (), (), None),
        (0.95, (0.1, INF), (0.0, 0.0), None),
        (0.5, (0.1, 0.2, INF), (10.0, 10.0, 10.0), 0.05),
        (0.95, (0.1, 0.2, INF), (90.0, 100.0, 100.0), 0.15),
        (0.95, (0.1, INF), (50.0, 100.0), 0.1),
    ],
)
def test_quantiles(q: float, bounds: tuple[float, ...], up_to: tuple[float, ...], expected: float | None) -> None:
    found = Histogram(100, 1, bounds, up_to).quantile(q)
    assert found == (None if expected is None else pytest.approx(expected))


def test_between_histograms_of_other_bounds_there_is_a_mean_and_no_quantile() -> None:
    older, newer = Histogram(1, 1.0, (0.1, INF), (1.0, 1.0)), Histogram(3, 5.0, (0.2, INF), (1.0, 3.0))
    assert newer.since(older).mean == 2.0
    assert newer.since(older).quantile(0.5) is None


def test_less_than_one_observation_has_no_mean() -> None:
    """1e18 tokens in 1e-300 requests are an infinite mean, which no request's cost can be."""
    assert Histogram(1e-300, 1e18).mean is None
    assert Histogram(1.0, 5.0).mean == 5.0
