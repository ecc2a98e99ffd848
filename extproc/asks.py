"""One pool's asks to its ledger: whom the next one is for, when it is due, and what an answer leaves. Pure.

An ask is for those at the front of the line. The first that may not go stops it, and it stands until something changes. Only
one is out at a time: what comes up before its answer goes into the next.

What an answer means for those asked for, and for the newcomers behind them, is the dispatcher's to see to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from extproc.holds import Holds
from extproc.model import Load, Pace, PoolState
from extproc.ports import Ask, Verdicts, Want
from extproc.queues.bands import Bands, Waiter, pass_one

T = TypeVar("T")

_WANTS_PER_ASK = 16


class Known(Protocol):
    """What the asks must know of their ledger: the pool as last heard. Read only where it matters: one that is cut off works
    its state out anew each time."""

    @property
    def state(self) -> PoolState: ...

    @property
    def total(self) -> Load: ...


class Asked(Struct, Generic[T], frozen=True):
    """One ask, and whom it is for, in order. `newcomers`: who came before it, asked for by name or not, and has no word yet.
    `room_at`: when the pace lets the next one go; inf: it stopped nobody."""

    ask: Ask
    waiters: Sequence[Waiter[T]]
    newcomers: Sequence[Waiter[T]]
    room_at: float

    def stops(self, admitted: int) -> bool:
        """The line stops at somebody, where so many of them may go; then it has stopped for all newcomers."""
        return admitted < len(self.waiters) or self.room_at < math.inf


class Asks(Generic[T]):
    """Reads the pool's queues, and what is known of the ledger."""

    __slots__ = (
        "_bands",
        "_holds",
        "_joined",
        "_known",
        "_newcomers",
        "_passing",
        "again_at",
        "needed",
        "open",
        "paced",
    )

    def __init__(self, known: Known, bands: Bands[T], holds: Holds) -> None:
        self._known = known
        self._bands = bands
        self._holds = holds
        self._passing: Waiter[T] | None = None
        """Asked for alone, next: a small one that goes before a large one at the head."""
        self._newcomers: list[Waiter[T]] = []
        self._joined: list[Waiter[T]] = []
        """Who came to a line that stands since it was last asked for, and could not go by what was known then."""
        self.open = False
        """One is out, and its answer is not here."""
        self.needed = False
        """Something came up that the last one did not say, or that may change its answer. Whoever sees it sets this."""
        self.again_at = math.inf
        """When one is needed though nothing came up; inf: never."""
        self.paced = False
        """At the last one the pace held back the first in line, and nothing else did."""

    @property
    def due(self) -> bool:
        """The next one is to be put now."""
        return not self.open and (self.needed or self._passing is not None)

    def joined(self, waiter: Waiter[T]) -> None:
        """It has come, and is in its band. To a line that stands it brings nothing where it does not fit into what is left: it
        cannot go, and for those before it somebody has asked already."""
        if not waiter.judged:
            self._newcomers.append(waiter)
            self.needed = True
        elif self._fits(waiter):
            self.needed = True
        elif self.open:
            self._joined.append(waiter)

    def next(self, now: float, pace: Pace | None) -> Asked[T]:
        """To be put now; `pace`: this replica's part of the pool's. Who passes is asked for alone: what came up meanwhile still
        calls for the line's own ask."""
        heads: Iterable[Waiter[T]]
        newcomers: list[Waiter[T]]
        if (passing := self._passing) is not None:
            self._passing, heads, newcomers = None, (passing,), []
        else:
            heads, newcomers = islice(self._bands.heads(), _WANTS_PER_ASK), self._newcomers
            self._newcomers, self.needed = [], False
        waiters, room_at = self._holds.lets(heads, now, pace)
        ask = self._holds.ask([Want(waiter.priority, waiter.load, now - waiter.arrived) for waiter in waiters])
        self._holds.told()
        self.open, self.again_at = True, math.inf
        return Asked(ask, waiters, newcomers, room_at)

    def answered(self) -> None:
        """The answer is here, and who came meanwhile is looked at again. Once it is acted on, `acted_on` is to follow."""
        self.open = False
        joined, self._joined = self._joined, []
        self.needed = self.needed or any(self._fits(waiter) for waiter in joined)

    def acted_on(self, asked: Asked[T], verdicts: Verdicts, *, now: float) -> None:
        """Those admitted are out of their queues, and newcomers to a line that stopped have their word."""
        refused = asked.waiters[verdicts.admitted :]
        if self._bands.count and not asked.stops(verdicts.admitted):
            self._newcomers += (waiter for waiter in asked.newcomers if waiter not in asked.waiters)
            self.needed = True
        room_at = math.inf if refused else asked.room_at  # a line that stands does not come to whom the pace stops
        self.paced = room_at < math.inf and self._first_fits()
        self._passing = pass_one(refused, verdicts.state, verdicts.total)
        self.again_at = room_at if verdicts.ask_again_s is None else min(room_at, now + verdicts.ask_again_s)

    def answered_at_once(self) -> None:
        """The ledger has been told everything, and nobody is in line."""
        self._holds.told()
        self.needed, self.again_at, self.paced = False, math.inf, False

    def _first_fits(self) -> bool:
        first = next(self._bands.heads(), None)
        return first is not None and self._fits(first)

    def _fits(self, waiter: Waiter[T]) -> bool:
        return (self._known.total + waiter.load).fits(self._known.state.limits[waiter.priority])
