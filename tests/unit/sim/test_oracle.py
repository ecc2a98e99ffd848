"""The search for the best constant limits."""

from __future__ import annotations

import pytest

from extproc.sim.oracle import EVALUATIONS, LEVEL, STEPS, Limits, best_constant_limits, climb


@pytest.mark.parametrize("peak", [0.16, 0.35, 0.8, 1.25])
@pytest.mark.parametrize("apart", [LEVEL, *STEPS])
def test_it_finds_the_peak_within_an_eighth_and_how_far_apart_the_limits_lie(peak: float, apart: Limits) -> None:
    def goodput(limits: Limits) -> float:
        off = sum(abs(limit / limits[1] - step) for limit, step in zip(limits, apart, strict=True))
        return 100 - abs(limits[1] / 1000 - peak) - off

    best = best_constant_limits(goodput, 1000)
    assert best.limits[1] / 1000 == pytest.approx(peak, rel=1 / 8)
    assert best.limits[2] / best.limits[1] == pytest.approx(apart[2])
    assert best.tokens_per_s == goodput(best.limits)


def test_it_asks_for_no_limit_twice_and_for_few_in_all() -> None:
    asked: list[Limits] = []

    def goodput(limits: Limits) -> float:
        asked.append(limits)
        return -limits[0]

    best_constant_limits(goodput, 1000)
    assert len(asked) == len(set(asked)) == EVALUATIONS + len(STEPS)


def test_climbing_comes_closer_with_every_evaluation() -> None:
    off = [abs(climb(lambda x: -((x - 2) ** 2), 0, 10, evaluations=n) - 2) for n in (4, 8, 16)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.02


def test_on_a_plateau_the_least_of_equals_is_taken() -> None:
    assert climb(lambda x: min(x, 2), 0, 10, evaluations=16) == pytest.approx(2, abs=0.02)
