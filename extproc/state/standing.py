"""How a replica stands with the store: heard, in trouble, cut off, coming back; and how it answers alone meanwhile. Pure.

The limits of one that is alone, and who fits them, are in `extproc.cutoff`; what the others do with one that comes back, in
`extproc.account`.
"""

from __future__ import annotations

import math

from extproc.cutoff import admissible_alone, alone
from extproc.model import NOTHING, Load, PoolState
from extproc.ports import Ask, Verdicts

AWAY_S = 1.0
"""Unheard for longer, cut off, after a broken connection, or once it has let somebody in by itself, a replica returns with
care (`account`)."""
CUT_OFF_S = 0.25
"""Trouble for longer shows in the pool's state: P2 is refused on arrival, and this replica watches the engines itself."""
_ALONE_AGAIN_S = 0.1


class Standing:
    """One replica's, with the store of one pool."""

    __slots__ = ("_base", "_heard_at", "_returning", "_trouble_at", "cut_off")

    def __init__(self) -> None:
        self.cut_off = False
        self._heard_at = -math.inf
        self._returning = False
        self._trouble_at: float | None = None
        self._base = NOTHING
        """What it held when the trouble began."""

    @property
    def alone(self) -> bool:
        """It answers by itself: the last call was late or failed."""
        return self._trouble_at is not None

    def unheard_s(self, now: float) -> float:
        """Since the last answer; inf: there was none yet."""
        return now - self._heard_at

    def returning(self, now: float) -> bool:
        """It asks again, after a time in which it may have let in whom nobody knows of."""
        return not self.alone and (self._returning or self._away(now))

    def heard(self, now: float, *, in_time: bool, said_alone: bool) -> None:
        """An answer came, to a report that said whether this replica was alone."""
        if in_time and not said_alone:
            self._returning = False
        elif self._away(now):
            self._returning = True
        self._heard_at = now

    def broken(self) -> None:
        """A call failed."""
        self._returning = True

    def late(self, now: float, held: Load) -> bool:
        """A call missed its deadline, or failed: alone from here on. True: that has lasted so long that it is cut off now."""
        if self._trouble_at is None:
            self._trouble_at, self._base = now, held
        if self.cut_off or now - self._trouble_at < CUT_OFF_S:
            return False
        self.cut_off = self._returning = True
        return True

    def back(self) -> bool:
        """It hears again. True: it was cut off."""
        was_cut_off = self.cut_off
        self.cut_off, self._trouble_at = False, None
        return was_cut_off

    def state(self, last: PoolState, now: float, *, replicas: int, hold_s: float) -> PoolState:
        """What holds for it alone, made from the last state that it heard."""
        for_s = 0.0 if self._trouble_at is None else now - self._trouble_at
        return alone(last, self._base, replicas=replicas, for_s=for_s, hold_s=hold_s)

    def answer(self, ask: Ask, ghosts: Load, state: PoolState) -> Verdicts:
        """By itself, within what `state` leaves it."""
        admitted = admissible_alone(ask.wants, ask.in_use, ghosts, state)
        total = sum((want.load for want in ask.wants[:admitted]), sum(ask.in_use, ghosts))
        self._returning = self._returning or admitted > 0
        return Verdicts(admitted, state, total, _ALONE_AGAIN_S if admitted < len(ask.wants) else None)

    def _away(self, now: float) -> bool:
        """Unheard for so long that the others may take this replica for dead soon."""
        return AWAY_S < self.unheard_s(now) < math.inf
