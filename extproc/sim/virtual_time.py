"""An asyncio loop whose clock jumps to the next timer: virtual hours are free, and a lost wake-up is an error, not a hang."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class LostWakeup(RuntimeError):
    """Nothing is ready and no timer is set, yet somebody still waits."""


class _JumpingSelector(selectors.SelectSelector):
    """Never blocks, and looks at no file: what would have been waited for is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise LostWakeup("nothing is ready and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Sockets and threads do not fit it; everything else runs as on any loop."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now

    def stall(self, seconds: float) -> None:
        """Time passes and no timer fires, as on a loop that something blocks."""
        self._virtual.now += seconds


class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
    """For pytest-asyncio's `event_loop_policy` fixture."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop()


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Runs `main` to its end in virtual time, starting at 0 s."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
