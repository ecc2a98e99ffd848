"""The ledger of one replica, in this process: nothing to install, every ask answered at once."""

from __future__ import annotations

import math
from collections.abc import Callable

from extproc.capacity import admissible
from extproc.clock import Clock
from extproc.model import NOTHING, Load, PoolState
from extproc.ports import Ask, Verdicts

_GHOST_HOLD_S = 10.0
"""How long ghost load is taken to be held while no request has yet ended to tell."""
_GHOST_GONE_SLOTS = 0.5
_LOOK_AGAIN_SHARE = 0.05


class LocalLedger:
    """Implements `ports.Ledger` and `ports.Publisher`.

    Ghost load g held for a mean of h seconds decays by dg/dt = -g/h: its share of the pool's drain. Under half a slot it
    is gone.
    """

    def __init__(self, initial: PoolState, clock: Clock) -> None:
        self._state = initial
        self._clock = clock
        self._ghosts = NOTHING
        self._ghosts_at = clock.now()
        self._hold_s = _GHOST_HOLD_S
        self._wake: Callable[[], None] = lambda: None

    @property
    def state(self) -> PoolState:
        return self._state

    @property
    def ghosts(self) -> Load:
        """Ghost load now."""
        self._decay_ghosts()
        return self._ghosts

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        if ask.mean_hold_s is not None:
            self._hold_s = ask.mean_hold_s
        self._decay_ghosts()
        self._ghosts += ask.ghosts
        total = sum(ask.in_use, self._ghosts)
        admitted = 0
        if ask.wants:
            admitted = admissible(ask.wants, ask.in_use, self._ghosts, self._state)
            total = sum((want.load for want in ask.wants[:admitted]), total)
        held_up_by_ghosts = admitted < len(ask.wants) and not self._ghosts.empty
        reply(
            Verdicts(
                admitted=admitted,
                state=self._state,
                total=total,
                ask_again_s=self._hold_s * _LOOK_AGAIN_SHARE if held_up_by_ghosts else None,
            )
        )

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def publish(self, state: PoolState) -> None:
        """Puts a new pool state in force and lets the waiters hear of it."""
        self._state = state
        self._wake()

    def _decay_ghosts(self) -> None:
        now = self._clock.now()
        if not self._ghosts.empty:
            left = self._ghosts.scaled(math.exp(-(now - self._ghosts_at) / self._hold_s))
            self._ghosts = left if left.slots >= _GHOST_GONE_SLOTS else NOTHING
        self._ghosts_at = now
