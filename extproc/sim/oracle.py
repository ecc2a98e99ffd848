"""What could have been done: the best constant limits, found offline by somebody who knows all lengths. Pure.

A limit counts true lengths, prompt and answer, from a request's admission to its end, and its state is known at once. So
the best one may lie above the KV tokens that there are: an answer half written holds half of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Steps = tuple[float, float, float]

LEVEL: Steps = (1.0, 1.0, 1.0)
STEPS: tuple[Steps, ...] = ((1.05, 1.0, 0.95), (1.2, 1.0, 0.85))
"""How far the priorities' limits lie apart around that of P1: not at all, a little, enough for a burst of P0."""
LEAST_SHARE, MOST_SHARE = 0.15, 1.3
"""Of the KV tokens that there are: where the limit is looked for."""
EVALUATIONS = 7
"""Of each search for the limit. They leave an eighth of it, over which goodput is flat."""
LINES_S = (math.inf, 0.5, 0.125)
"""How much prefill may stand in line in an engine. Whoever starts behind it is late by that."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one engine. `kv_tokens`: that P0, P1 and P2 may bring it to. `line_s`: seconds of prefill that it may have before it."""

    kv_tokens: tuple[float, float, float]
    line_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Best:
    """`tokens_per_s`: goodput under `limits`."""

    tokens_per_s: float
    limits: Limits


def best_constant_limits(goodput: Callable[[Limits], float], capacity_tokens: float) -> Best:
    """The best of what was tried: one limit for all first, with each line, then limits apart, around the best.

    `goodput`: tokens per second of answers within target, from a whole run under these limits.
    """
    tried: list[Best] = []

    def value(share: float, steps: Steps, line_s: float) -> float:
        p0, p1, p2 = (share * capacity_tokens * step for step in steps)
        limits = Limits((p0, p1, p2), line_s)
        found = goodput(limits)
        tried.append(Best(found, limits))
        return found

    def best() -> Best:
        return max(tried, key=lambda one: one.tokens_per_s)

    def level(line_s: float) -> Callable[[float], float]:
        return lambda log_share: value(math.exp(log_share), LEVEL, line_s)

    for line_s in LINES_S:
        climb(level(line_s), math.log(LEAST_SHARE), math.log(MOST_SHARE), evaluations=EVALUATIONS)
    around = best().limits
    for steps in STEPS:
        value(around.kv_tokens[1] / capacity_tokens, steps, around.line_s)
    return best()


def climb(function: Callable[[float], float], low: float, high: float, *, evaluations: int) -> float:
    """Golden section: where a function with one peak between `low` and `high` was highest, after that many evaluations.

    On a plateau it goes down: the least of equals.
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(evaluations - 2):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return left if at_left >= at_right else right
