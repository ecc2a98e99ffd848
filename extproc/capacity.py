"""How many waiters fit a pool, and how ghost load goes: the arithmetic of an ask. Pure, shared by every ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.model import NOTHING, Hold, Load, PoolState, together
from extproc.ports import Want

GHOST_GONE_SLOTS = 0.5
"""Under half a slot it is gone."""
LOOK_AGAIN_SHARE = 0.05
"""Ghost load is looked at again after this share of its mean hold."""


def admissible(wants: Sequence[Want], in_use: Sequence[Load], ghosts: Load, state: PoolState) -> int:
    """How many of the wants, from the front, may go now. The first that may not stops the line: none is passed over."""
    used = list(in_use)
    for count, want in enumerate(wants):
        if not fits(want, used, ghosts, state):
            return count
        used[want.priority] += want.load
    return len(wants)


def fits(want: Want, used: Sequence[Load], ghosts: Load, state: PoolState) -> bool:
    """Whether a want may go while `used` per priority, over all replicas, and ghost load are held.

    A want of priority p fits when

    - the total with it stays within `limits[p]`, and
    - for each priority q above p: the load of all below q with it stays within `limits[P0] - reserved[q]`.

    A want larger by tokens than its limit would never fit: it goes when the pool is otherwise empty. Slots bind always.
    """
    priority, needed = want.priority, want.load
    limit = state.limits[priority]
    total = together(ghosts, used)
    if total.empty and 0 < limit.tokens < needed.tokens:
        needed = Load(0.0, needed.slots)
    if not (total + needed).fits(limit):
        return False
    if priority == 0:
        return True
    below = sum(used[priority + 1 :], ghosts)
    for above in range(priority - 1, -1, -1):
        below += used[above + 1]
        if not (below + needed).fits(state.limits[0] - state.reserved[above]):
            return False
    return True


def most_slots(state: PoolState, priority: int) -> float:
    """The slots that a pool with nothing in use leaves to this priority: whole and at least 1, or inf."""
    left = [state.limits[priority].slots]
    left += [state.limits[0].slots - state.reserved[above].slots for above in range(priority)]
    least = min(left)
    return least if least == math.inf else max(1, math.floor(least))


def faded(load: Load, for_s: float, hold_s: float) -> Load:
    """What is left of ghost load that is held for a mean of `hold_s` after `for_s`: dg/dt = -g/h, its share of the drain."""
    left = load.scaled(math.exp(-for_s / hold_s))
    return left if left.slots >= GHOST_GONE_SLOTS else NOTHING


def look_again_s(ghosts: Load, hold: Hold) -> float | None:
    """When to look again whether ghost load has gone enough; None: there is none."""
    return None if ghosts.empty else hold.mean_s * LOOK_AGAIN_SHARE


class Ghosts:
    """One replica's ghost load, fading. `hold`: how long load is held."""

    __slots__ = ("_at", "_load", "hold")

    def __init__(self, now: float) -> None:
        self._load = NOTHING
        self._at = now
        self.hold = Hold()

    def add(self, load: Load, now: float) -> Load:
        """Ghost load now, with this."""
        left = self.left(now)
        if load is not NOTHING:
            left = self._load = left + load
        return left

    def left(self, now: float) -> Load:
        """Ghost load now."""
        if self._load is not NOTHING:
            self._load = faded(self._load, now - self._at, self.hold.mean_s)
        self._at = now
        return self._load
