"""What could have been done: the best constant limits, found offline by somebody who knows all lengths. Pure.

A limit counts true lengths, prompt and answer, from a request's admission to its end, and its state is known at once. So
the best one lies above the KV tokens that there are: an answer half written holds half of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Limits = tuple[float, float, float]
"""KV tokens that P0, P1 and P2 may bring the whole pool to."""

LADDERS: tuple[Limits, ...] = ((1.0, 1.0, 1.0), (1.0, 0.95, 0.90), (1.0, 0.85, 0.75))
"""How far each priority's limit is below that of P0: not at all, a little, enough for a burst of P0."""
LEAST_SHARE, MOST_SHARE = 0.3, 1.3
"""Of the KV tokens that there are: where P0's limit is looked for."""
EVALUATIONS = 6
"""Of the search along a ladder. It leaves a tenth of the range, over which goodput is flat."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Best:
    """`tokens_per_s`: goodput under `limits`."""

    tokens_per_s: float
    limits: Limits


def best_constant_limits(goodput: Callable[[Limits], float], capacity_tokens: float) -> Best:
    """The best of what was tried: every ladder once in the middle, then P0's limit along the best of them.

    `goodput`: tokens per second of answers within target, from a whole run under these limits.
    """
    tried: dict[Limits, float] = {}

    def measured(share: float, ladder: Limits) -> float:
        limits = (share * capacity_tokens, share * capacity_tokens * ladder[1], share * capacity_tokens * ladder[2])
        return tried.setdefault(limits, goodput(limits)) if limits not in tried else tried[limits]

    first = LEAST_SHARE + _GOLDEN * (MOST_SHARE - LEAST_SHARE)
    ladder = max(LADDERS, key=lambda steps: measured(first, steps))
    climb(lambda share: measured(share, ladder), LEAST_SHARE, MOST_SHARE, evaluations=EVALUATIONS)
    limits, value = max(tried.items(), key=lambda item: item[1])
    return Best(value, limits)


def climb(function: Callable[[float], float], low: float, high: float, *, evaluations: int) -> float:
    """Golden section: where a function with one peak between `low` and `high` was highest, after that many evaluations.

    On a plateau it goes down: the least of equals."""
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
