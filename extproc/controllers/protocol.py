"""What every controller is: one step from what is known of a pool to what shall hold in it."""

from __future__ import annotations

from typing import Protocol

from extproc.fleet import Fleet
from extproc.model import Demand, PoolState


class Controller(Protocol):
    """One law, or several composed.

    What a law needs to remember beyond `previous` it keeps as one frozen value in an attribute named `memory`, replaced
    in `step` and nowhere else: it can be read, handed to a successor on reload, and compared in a test.
    """

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        """The pool's state from `now` (clock seconds) on. Called at any rate; never raises for what engines say.

        `previous`: the state in force until now, after composition and override: what really held, not what this law
        wanted. The answer is valid whatever comes in: limits not negative and P0 >= P1 >= P2, rejections 0..1 and
        P0 <= P1 <= P2. A law that says nothing of limits answers `UNLIMITED`, one that refuses nobody answers zeros.
        """
