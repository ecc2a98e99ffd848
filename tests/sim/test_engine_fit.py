"""The engine model, fitted, shows what the measured engine shows under 4 to 64 streams on a cache for 12 of them."""

from __future__ import annotations

import math

import pytest

from extproc.sim.fit.fitting import FITTED, STARTS, fit, loss, residuals
from extproc.sim.fit.measured import MEASURED, Cell
from extproc.sim.fit.simplex import least
from extproc.sim.fit.streams import percentile, run_streams

FEW, MANY = (4, 8), (16, 32, 64)
"""Streams whose KV tokens all fit the cache, and streams whose tokens do not."""


@pytest.fixture(scope="module")
def model() -> dict[int, Cell]:
    return {streams: run_streams(FITTED, streams) for streams in MEASURED}


def test_throughput_is_flat_once_the_cache_is_full(model: dict[int, Cell]) -> None:
    full = [model[streams].tokens_per_s for streams in MANY]
    assert max(full) < 1.1 * min(full)
    assert min(full) > 2 * model[4].tokens_per_s


def test_time_to_first_token_grows_with_the_streams_and_its_tail_runs_away(model: dict[int, Cell]) -> None:
    medians = [model[streams].ttft_p50_s for streams in sorted(model)]
    assert medians == sorted(medians)
    assert [model[streams].ttft_p95_s > 5 * model[streams].ttft_p50_s for streams in MEASURED] == [0, 0, 0, 1, 1]


def test_preempted_streams_stall_for_seconds_and_the_more_the_longer(model: dict[int, Cell]) -> None:
    assert [model[streams].preemptions for streams in FEW] == [0, 0]
    assert all(model[streams].longest_gap_s < 0.3 for streams in FEW)
    stalls = [model[streams].longest_gap_s for streams in MANY]
    assert stalls == sorted(stalls)
    assert stalls[0] > 2
    assert stalls[-1] > 15
    assert [model[streams].preemptions for streams in MANY] == [pytest.approx(n, rel=0.25) for n in (12, 95, 135)]


def test_the_median_gap_between_tokens_hides_it_all(model: dict[int, Cell]) -> None:
    assert all(model[streams].gap_p50_s < 1.3 * model[16].gap_p50_s for streams in MANY)


def test_no_figure_is_off_by_more_than_a_factor_of_two_and_a_half() -> None:
    """Worst are the rare long gaps under few streams: a shared CPU has them, the model has no noise."""
    cells = residuals(FITTED)
    assert max(abs(value) for row in cells.values() for value in row) < math.log(2.5)
    assert loss(cells) < 0.21


def test_with_room_for_all_nothing_stalls() -> None:
    """The control: it is the cache, not the coefficients, that makes the shape."""
    roomy = run_streams(FITTED, 64, kv_tokens=65_536)
    assert roomy.preemptions == 0
    assert roomy.longest_gap_s < 2
    assert roomy.tokens_per_s > 1.3 * run_streams(FITTED, 64).tokens_per_s


def test_a_few_rounds_of_the_search_already_come_closer_than_the_starts() -> None:
    assert loss(residuals(fit(rounds=2))) < min(loss(residuals(start)) for start in STARTS)


def test_the_search_finds_the_floor_of_a_bent_valley() -> None:
    value, point = least(lambda p: (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2, [-1.2, 1.0], step=0.5, rounds=200)
    assert value < 1e-9
    assert point == pytest.approx([1, 1], abs=1e-3)


def test_a_percentile_counts_how_often_each_value_was_seen() -> None:
    assert percentile([(2.0, 1), (1.0, 98), (9.0, 1)], 0.95) == 1
    assert percentile([(2.0, 1), (1.0, 98), (9.0, 1)], 0.99) == 2
    assert percentile([], 0.5) == math.inf
