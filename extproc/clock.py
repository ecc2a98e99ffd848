"""The only reader of time. Everything else takes a `Clock` or an explicit `now`, in seconds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call that can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds on a monotonic scale whose zero means nothing, and calls at a moment on it."""

    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The clock of an asyncio loop; on a virtual-time loop it is virtual."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(when, callback)


class Alarm:
    """One timer for the earliest of many moments: calls `ring` at the moment asked for last, or somewhat before.

    A timer that is early enough already is left alone, since most moments are called off before they come.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = math.inf

    def by(self, when: float) -> None:
        """Rings at `when` at the latest; inf asks for nothing."""
        if when >= self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = max(when, self._clock.now())
        self._timer = self._clock.call_at(self._at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._at = math.inf
        self._ring()


def wall_clock() -> float:
    """Seconds since the epoch, for logs and for people. Never for a decision, but for what every replica must decide alike
    (`levels.py`), where a clock that jumps does no harm."""
    return time.time()


def monotonic() -> float:
    """Seconds, monotonic: for code that runs outside an asyncio loop (benchmarks, the demo's supervisor)."""
    return time.monotonic()
