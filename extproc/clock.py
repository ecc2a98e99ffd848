"""The only reader of time. Everything else takes a `Clock` or an explicit `now`, in seconds."""

from __future__ import annotations

import asyncio
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


def wall_clock() -> float:
    """Seconds since the epoch, for logs and for people. Never for a decision."""
    return time.time()


def monotonic() -> float:
    """Seconds, monotonic: for code that runs outside an asyncio loop (benchmarks, the demo's supervisor)."""
    return time.monotonic()
