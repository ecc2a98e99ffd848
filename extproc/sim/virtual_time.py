"""An asyncio loop whose clock jumps to the next timer: virtual hours are free, and a lost wake-up is an error, not a hang."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from typing import TypeVar

T = TypeVar("T")

_RESOLUTION_S = 1e-9
"""Timers no further apart ring at once, in the order of their times."""


class LostWakeup(RuntimeError):
    """Nothing is ready and no timer is set, yet somebody still waits."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Sockets and threads do not fit it; everything else runs as on any loop. Of timers set to one moment, the first set goes
    first."""

    _ready: deque[asyncio.Handle]
    """The base class's own, which `call_soon` fills."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap. What stands before the timers is compared without a call of Python."""
        self._set = 0

    def time(self) -> float:
        return self._now

    def stall(self, seconds: float) -> None:
        """Time passes and no timer fires, as on a loop that something blocks."""
        self._now += seconds

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def _run_once(self) -> None:
        """What is ready, or else what the next timer makes ready."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not ready:
            if not timers:
                raise LostWakeup("nothing is ready and no timer is set")
            self._now = max(self._now, timers[0][0])
        until = self._now + _RESOLUTION_S
        while timers and timers[0][0] < until:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
    """For pytest-asyncio's `event_loop_policy` fixture."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop()


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Runs `main` to its end in virtual time, starting at 0 s."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
