"""An asyncio loop whose clock jumps to the next timer: virtual hours are free, and a lost wake-up is an error, not a hang."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import TypeVar

T = TypeVar("T")

_RESOLUTION_S = 1e-9
"""Timers no further apart ring at once."""
_MOST_CALLED_OFF, _LEAST_TIMERS = 0.5, 100
"""Share of the timers, where there are more than so many, that may be called off and still be kept."""


class LostWakeup(RuntimeError):
    """Nothing is ready and no timer is set, yet somebody still waits."""


class _Timer(asyncio.TimerHandle):
    """`kept`: it is in the loop's heap."""

    __slots__ = ("kept",)

    kept: bool


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Sockets and threads do not fit it; everything else runs as on any loop."""

    _ready: deque[asyncio.Handle]
    """The base class's own, which `call_soon` fills."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, _Timer]] = []
        """A heap. The times beside the timers are compared without a call of Python."""
        self._called_off = 0

    def time(self) -> float:
        return self._now

    def stall(self, seconds: float) -> None:
        """Time passes and no timer fires, as on a loop that something blocks."""
        self._now += seconds

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.kept = True
        heappush(self._timers, (when, timer))
        return timer

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        self._called_off += handle.kept

    def _run_once(self) -> None:
        """What is ready, or else what the next timer makes ready."""
        self._tidy()
        timers, ready = self._timers, self._ready
        if not ready:
            if not timers:
                raise LostWakeup("nothing is ready and no timer is set")
            self._now += max(0.0, timers[0][0] - self._now)
        until = self._now + _RESOLUTION_S
        while timers and timers[0][0] < until:
            timer = heappop(timers)[1]
            timer.kept = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _tidy(self) -> None:
        """Drops timers that were called off: all where they are too many, or else those at the front."""
        timers = self._timers
        if len(timers) > _LEAST_TIMERS and self._called_off > _MOST_CALLED_OFF * len(timers):
            self._timers = [one for one in timers if not one[1]._cancelled]
            heapify(self._timers)
            self._called_off = 0
            return
        while timers and timers[0][1]._cancelled:
            heappop(timers)
            self._called_off -= 1


class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
    """For pytest-asyncio's `event_loop_policy` fixture."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop()


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Runs `main` to its end in virtual time, starting at 0 s."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
