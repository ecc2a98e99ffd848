"""What a replica may do by itself while it cannot ask: a share of the last limit, taken slowly. Pure.

At the loss one replica may hold all of the limit and another nothing. So each may at once admit what keeps it within its
share, but what it holds less than its share it takes up only as fast as the others can be expected to give theirs up:
evenly over two mean holds. Until then it replaces what ends. The sum over all replicas so stays within the limit that they
last heard of, wherever the load was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from extproc.capacity import fits
from extproc.model import Load, PoolState, Priority
from extproc.ports import Want

SHARE = 0.9
"""Of the last limit: all replicas together leave a tenth for those that nobody knew of."""
HOLDS = 2.0


def alone(state: PoolState, base: Load, *, replicas: int, for_s: float, hold_s: float) -> PoolState:
    """The limits of one of `replicas` that was cut off `for_s` ago and held `base` then. P2 is refused."""
    part = SHARE / max(1, replicas)
    risen = min(1.0, for_s / (HOLDS * hold_s))
    p0, p1, p2 = (_risen(base, limit.scaled(part), risen) for limit in state.limits)
    r0, r1, r2 = (load.scaled(part) for load in state.reserved)
    return replace(
        state,
        limits=(p0, p1, p2),
        reserved=(r0, r1, r2),
        rejection=(state.rejection[0], state.rejection[1], 1.0),
        reason="cut-off",
    )


def admissible_alone(wants: Sequence[Want], in_use: Sequence[Load], ghosts: Load, state: PoolState) -> int:
    """As `capacity.admissible` within the limits of `alone`, but P2 never goes, and nobody goes above a limit: several
    replicas would each let its large one go alone."""
    used = list(in_use)
    for count, want in enumerate(wants):
        within = (sum(used, ghosts) + want.load).fits(state.limits[want.priority])
        if want.priority is Priority.P2 or not within or not fits(want, used, ghosts, state):
            return count
        used[want.priority] += want.load
    return len(wants)


def _risen(base: Load, share: Load, risen: float) -> Load:
    return Load(_toward(base.tokens, share.tokens, risen), _toward(base.slots, share.slots, risen))


def _toward(base: float, share: float, risen: float) -> float:
    """Down at once, up by and by; an unbounded share is no bound."""
    return share if base >= share or share == math.inf else base + (share - base) * risen
