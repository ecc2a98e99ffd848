"""The ledger of one replica, in this process: nothing to install, every ask answered at once."""

from __future__ import annotations

import math
from collections.abc import Callable

from extproc.account import Account, Report
from extproc.capacity import Ghosts
from extproc.clock import Clock
from extproc.model import NOTHING, Load, PoolState
from extproc.ports import Ask, Verdicts


class LocalLedger:
    """Implements `ports.Ledger` and `ports.Publisher`: an account of a single replica, that nothing can be lost from."""

    def __init__(self, initial: PoolState, clock: Clock) -> None:
        self._state = initial
        self._account = Account(initial, generation=-math.inf)
        self._clock = clock
        self._ghosts = Ghosts(clock.now())
        self._total = NOTHING
        self._seq = 0
        self._wake: Callable[[], None] = lambda: None

    @property
    def state(self) -> PoolState:
        return self._state

    @property
    def total(self) -> Load:
        return self._total

    @property
    def replicas(self) -> int:
        return 1

    @property
    def ghosts(self) -> Load:
        """Ghost load now."""
        return self._ghosts.left(self._clock.now())

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        now = self._clock.now()
        if ask.mean_hold_s is not None:
            self._ghosts.hold_s = ask.mean_hold_s
        self._ghosts.add(ask.ghosts, now)
        self._seq += 1
        report = Report(
            replica="",
            seq=self._seq,
            in_use=ask.in_use,
            ghosts=self._ghosts.left(now),
            hold_s=self._ghosts.hold_s,
            wants=ask.wants,
        )
        settled = self._account.ask(now, report)
        if settled is None:
            raise AssertionError("a report with a new number was ignored")
        self._total = settled.total
        reply(Verdicts(settled.admitted, self._state, settled.total, settled.again_s))

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def publish(self, state: PoolState) -> None:
        """Puts a new pool state in force and lets the waiters hear of it."""
        self._state = self._account.state = state
        self._wake()
