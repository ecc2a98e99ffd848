"""What a pool's users were promised, and what the product makes of it. Pure."""

from __future__ import annotations

import math

from extproc.config import ControllerName, PoolPolicy
from extproc.model import PRIORITIES, Priority

PER_TOKEN_S = 0.06
"""Time per token after the first where a pool says none: somewhat faster than people read."""


def enforced_first_token_s(pool: PoolPolicy) -> tuple[float, float, float]:
    """Per priority, the time to a first token after which a request counts for nothing; inf: it is served late as well."""
    if ControllerName.FUSED not in pool.controllers or not pool.fused.refuse_late:
        return math.inf, math.inf, math.inf
    first, second, third = (_first_token_s(pool, priority) for priority in PRIORITIES)
    return first, second, third


def per_token_s(pool: PoolPolicy) -> float:
    """The tightest time per token: engines answer all priorities in the same steps."""
    stated = [target.tpot_s for target in pool.targets.values() if target.tpot_s is not None]
    return min(stated, default=PER_TOKEN_S)


def _first_token_s(pool: PoolPolicy, priority: Priority) -> float:
    """Only what is stated: nobody is refused for a promise that nobody gave. Then the queue's time-out bounds the wait."""
    target = pool.targets.get(priority)
    return math.inf if target is None or target.ttft_s is None else target.ttft_s
