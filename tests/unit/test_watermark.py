"""The classical watermark law, value by value."""

from __future__ import annotations

import pytest

from extproc.config import FailurePolicy, ShedOrder, WatermarkPolicy
from extproc.controllers.watermark import Watermark
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, PoolState

NOW = 100.0
START = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))


def _sample(engine: str, usage: float | None, *, waiting: int = 0, age_s: float = 0.0) -> EngineSample:
    return EngineSample(engine=engine, at=NOW - age_s, kv_usage=usage, waiting=waiting)


def _step(*samples: EngineSample) -> PoolState:
    fleet = Fleet(configured=tuple(s.engine for s in samples), samples={s.engine: s for s in samples})
    law = Watermark(WatermarkPolicy(shed=ShedOrder.UNIFORM), FailurePolicy())
    return law.step(NOW, fleet, demand=Demand(), previous=START)


@pytest.mark.parametrize(
    ("usage", "rate"),
    [
        (0.0, 0.0),
        (0.80, 0.0),
        (0.8001, 0.10),
        (0.81, 0.10),
        (0.815, 0.125),
        (0.86, 0.50),
        (0.91, 11 / 12),
        (0.92, 1.0),
        (1.0, 1.0),
    ],
)
def test_rate_by_mean_usage(usage: float, rate: float) -> None:
    state = _step(_sample("a", usage))
    assert state.rejection == pytest.approx((rate, rate, rate))
    assert state.saturation == usage


def test_the_mean_counts_over_engines() -> None:
    assert _step(_sample("a", 1.0), _sample("b", 0.6)).rejection[0] == 0.0


def test_waiting_above_the_maximum_refuses_all_whatever_the_cache_shows() -> None:
    assert _step(_sample("a", 0.1, waiting=40), _sample("b", 0.1)).rejection[0] == 0.0
    state = _step(_sample("a", 0.1, waiting=41), _sample("b", 0.1))
    assert state.rejection == (1.0, 1.0, 1.0)
    assert state.saturation == 1.0


def test_an_engine_silent_for_a_second_is_left_out() -> None:
    assert _step(_sample("a", 1.0, age_s=1.01), _sample("b", 0.5)).saturation == 0.5
    assert _step(_sample("a", 1.0, age_s=0.99), _sample("b", 0.5)).saturation == 0.75


def test_no_engine_left_refuses_half() -> None:
    assert _step(_sample("a", 0.2, age_s=5.0)).rejection == (0.5, 0.5, 0.5)
    assert _step().rejection == (0.5, 0.5, 0.5)


def test_missing_usage_is_not_zero_usage_but_its_queue_counts() -> None:
    assert _step(_sample("a", None), _sample("b", 0.86)).rejection[0] == pytest.approx(0.5)
    assert _step(_sample("a", None, waiting=41), _sample("b", 0.1)).rejection[0] == 1.0
    assert _step(_sample("a", None)).rejection[0] == 0.5


def test_says_nothing_of_limits() -> None:
    assert _step(_sample("a", 0.99)).limits == (UNLIMITED, UNLIMITED, UNLIMITED)
