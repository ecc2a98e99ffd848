"""Rates, holds and the drain."""

from __future__ import annotations

import math

import pytest

from extproc.meters import HoldMeter, RateMeter, Traffic, expected_wait_s
from extproc.model import NOTHING, Load, PoolState, Priority


def test_a_steady_rate_is_read_as_it_is() -> None:
    meter = RateMeter(window_s=1.0)
    for i in range(500):
        meter.add(i / 50)
    assert meter.per_s(10.0) == pytest.approx(50, rel=0.1)


def test_a_rate_is_right_before_the_window_has_filled_and_fades_after() -> None:
    meter = RateMeter(window_s=1.0)
    for i in range(20):
        meter.add(i / 100)
    assert 50 < meter.per_s(0.2) < 150
    assert meter.per_s(5.0) < 1


def test_the_drain_follows_littles_law() -> None:
    meter = HoldMeter()
    assert meter.drain_per_s(Load(100, 10)) is None
    for _ in range(10):
        meter.ended(Load(10, 1), 2.0)
    assert meter.drain_per_s(Load(100, 10)) == Load(50, 5)
    assert meter.drain_per_s(NOTHING) is None


def test_a_few_long_answers_do_not_hide_behind_many_short_ones() -> None:
    meter = HoldMeter()
    for _ in range(10):
        meter.ended(Load(10, 1), 0.1)
    meter.ended(Load(1000, 1), 30.0)
    assert meter.mean_hold_s is not None
    assert meter.mean_hold_s > 20


def test_the_least_hold_falls_at_once_and_rises_slowly() -> None:
    meter = HoldMeter()
    assert meter.hold is None

    def least_s(held_s: float, times: int) -> float:
        for _ in range(times):
            meter.ended(Load(10, 1), held_s)
        assert meter.hold is not None
        return meter.hold.least_s

    assert least_s(3.0, 5) == 3.0
    assert least_s(0.5, 1) == 0.5
    assert 0.5 < least_s(3.0, 5) < 1.5
    assert least_s(3.0, 100) == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(
    ("ahead", "free", "drain", "wait"),
    [
        (Load(100, 1), Load(100, 1), None, 0.0),
        (Load(100, 1), Load(0, 0), None, None),
        (Load(100, 2), Load(0, math.inf), Load(50, 1), 2.0),
        (Load(100, 4), Load(math.inf, 0), Load(50, 1), 4.0),
        (Load(100, 4), Load(0, 0), Load(10, 1), 10.0),
        (Load(100, 4), Load(0, 0), Load(0, 1), math.inf),
        (Load(100, 4), Load(-50, -1), Load(10, 1), 10.0),
    ],
)
def test_the_expected_wait(ahead: Load, free: Load, drain: Load | None, wait: float | None) -> None:
    assert expected_wait_s(ahead, free, drain) == wait


def test_traffic_tells_the_newcomers_wait_from_what_is_ahead() -> None:
    traffic = Traffic()
    limit = Load(math.inf, 10)
    pool = PoolState(limits=(limit, limit, limit))
    traffic.costed(Load(10, 1))
    for _ in range(10):
        traffic.ended(Load(10, 1), 5.0)
    assert traffic.expected_wait_s(NOTHING, Load(90, 9), pool, Priority.P1) == 0
    assert traffic.expected_wait_s(Load(90, 9), Load(100, 10), pool, Priority.P1) == pytest.approx(5.0)
