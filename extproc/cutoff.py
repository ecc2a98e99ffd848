"""What a replica may do by itself while it cannot ask: a share of the last limit, taken slowly. Pure.

At the loss one replica may hold all of the limit and another nothing. So each may at once admit what keeps it within its
share, but what it holds less than its share it takes up only as fast as the others can be expected to give theirs up:
evenly over two mean holds. Until then it replaces what ends. The sum over all replicas so stays within the limit that they
last heard of, wherever the load was. For P0 the margin in the shares comes by and by, too: it waits for no other's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from extproc.capacity import fits
from extproc.model import Load, PoolState, Priority, least
from extproc.ports import Want

SHARE = 0.9
"""Of the last limit: all replicas together leave a tenth for those that nobody knew of."""
HOLDS = 2.0


def alone(state: PoolState, base: Load, *, replicas: int, for_s: float, hold_s: float) -> PoolState:
    """The limits of one of `replicas` that was cut off `for_s` ago and held `base` then. P2 is refused."""
    replicas = max(1, replicas)
    part = SHARE / replicas
    risen = min(1.0, for_s / (HOLDS * hold_s))
    first, *others = (limit.scaled(part) for limit in state.limits)
    even = Load(state.limits[0].tokens / replicas, state.limits[0].slots / replicas)
    p0 = _between(least(base, even), first, risen)
    p1, p2 = (_between(least(base, share), share, risen) for share in others)
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


def _between(start: Load, share: Load, risen: float) -> Load:
    return Load(_toward(start.tokens, share.tokens, risen), _toward(start.slots, share.slots, risen))


def _toward(start: float, share: float, risen: float) -> float:
    """An unbounded share is no bound."""
    return share if share == math.inf else start + (share - start) * risen
