"""The search for the best constant limits."""

from __future__ import annotations

import pytest

from extproc.sim.oracle import EVALUATIONS, LADDERS, Limits, best_constant_limits, climb


@pytest.mark.parametrize("peak", [0.35, 0.8, 1.0, 1.25])
@pytest.mark.parametrize("ladder", LADDERS)
def test_it_finds_the_peak_within_a_tenth_and_the_ladder(peak: float, ladder: Limits) -> None:
    asked: list[Limits] = []

    def goodput(limits: Limits) -> float:
        asked.append(limits)
        steps = [limit / limits[0] for limit in limits]
        return 100 - abs(limits[0] / 1000 - peak) - sum(abs(a - b) for a, b in zip(steps, ladder, strict=True))

    best = best_constant_limits(goodput, 1000)
    assert best.limits[0] / 1000 == pytest.approx(peak, abs=0.1)
    assert best.limits[2] / best.limits[0] == pytest.approx(ladder[2])
    assert best.tokens_per_s == max(goodput(limits) for limits in tuple(asked))


def test_it_asks_for_no_limit_twice_and_for_few_in_all() -> None:
    asked: list[Limits] = []

    def goodput(limits: Limits) -> float:
        asked.append(limits)
        return -limits[0]

    best_constant_limits(goodput, 1000)
    assert len(asked) == len(set(asked)) == len(LADDERS) + EVALUATIONS - 1


def test_climbing_comes_closer_with_every_evaluation() -> None:
    off = [abs(climb(lambda x: -((x - 2) ** 2), 0, 10, evaluations=n) - 2) for n in (4, 8, 16)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.02
