"""How late the event loop runs its timers: the one number that says whether this process has time left."""

from __future__ import annotations

from collections import deque

from extproc.clock import Clock, Timer

PERIOD_S = 0.1
KEPT = 100
"""Measurements looked back on: the last 10 s."""


class LoopLag:
    """Measures from `start()` to `stop()`. A process that was stopped for a second shows a lag of a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags: deque[float] = deque(maxlen=KEPT)
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._schedule(self._clock.now())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def worst_s(self) -> float | None:
        """The largest lag of the last 10 s; None before the first measurement."""
        return max(self._lags, default=None)

    def _schedule(self, now: float) -> None:
        self._due = now + PERIOD_S
        self._timer = self._clock.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._clock.now()
        self._lags.append(max(0.0, now - self._due))
        self._schedule(now)
