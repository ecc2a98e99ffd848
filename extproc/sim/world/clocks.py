"""Clocks of processes that do not agree: each has its own zero and its own pace, and may leap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extproc.clock import Timer

_LATE_S = 1e-6
"""No timer rings before its moment, whatever rounding says."""


class SkewedClock:
    """Implements `clock.Clock`. `rate`: its seconds per second of the world; `offset_s`: what it shows at the start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self._loop = loop
        self._rate = rate
        self._offset_s = offset_s

    def now(self) -> float:
        return self._loop.time() * self._rate + self._offset_s

    def leap(self, seconds: float) -> None:
        """As after a pause of the machine: time has passed, and timers that were set before ring late."""
        self._offset_s += seconds

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at((when - self._offset_s) / self._rate + _LATE_S, callback)
