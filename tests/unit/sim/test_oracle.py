"""The search for the best constant limits."""

from __future__ import annotations

import pytest

from extproc.sim.oracle import EVALUATIONS, LEVEL, LINES_S, STEPS, Limits, Steps, best_constant_limits, climb


@pytest.mark.parametrize("peak", [0.16, 0.35, 0.8, 1.25])
@pytest.mark.parametrize("apart", [LEVEL, *STEPS])
@pytest.mark.parametrize("line_s", LINES_S)
def test_it_finds_the_peak_within_an_eighth_and_how_far_apart_the_limits_lie(
    peak: float, apart: Steps, line_s: float
) -> None:
    def goodput(limits: Limits) -> float:
        p1 = limits.kv_tokens[1]
        off = sum(abs(limit / p1 - step) for limit, step in zip(limits.kv_tokens, apart, strict=True))
        return 100 - abs(p1 / 1000 - peak) - off - (limits.line_s != line_s)

    best = best_constant_limits(goodput, 1000)
    assert best.limits.kv_tokens[1] / 1000 == pytest.approx(peak, rel=1 / 8)
    assert best.limits.kv_tokens[2] / best.limits.kv_tokens[1] == pytest.approx(apart[2])
    assert best.limits.line_s == line_s
    assert best.tokens_per_s == goodput(best.limits)


def test_it_asks_for_no_limits_twice_and_for_few_in_all() -> None:
    asked: list[Limits] = []

    def goodput(limits: Limits) -> float:
        asked.append(limits)
        return -limits.kv_tokens[0]

    best_constant_limits(goodput, 1000)
    assert len(asked) == len(set(asked)) == len(LINES_S) * EVALUATIONS + len(STEPS)


def test_climbing_comes_closer_with_every_evaluation() -> None:
    off = [abs(climb(lambda x: -((x - 2) ** 2), 0, 10, evaluations=n) - 2) for n in (4, 8, 16)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.02


def test_on_a_plateau_the_least_of_equals_is_taken() -> None:
    assert climb(lambda x: min(x, 2), 0, 10, evaluations=16) == pytest.approx(2, abs=0.02)
