"""The end of our patience with a call, in a process that may itself be late."""

from __future__ import annotations

from collections.abc import Callable

from extproc.clock import Clock, Timer

DEADLINE_S = 0.025
LAG_S = 0.01


class Deadline:
    """Calls `passed` after `DEADLINE_S` of a loop that is itself on time: an answer may lie unread while we are late."""

    def __init__(self, clock: Clock, on_pass: Callable[[], None]) -> None:
        self._clock = clock
        self._on_pass = on_pass
        self.passed = False
        self._arm()

    def _arm(self) -> None:
        self._at = self._clock.now() + DEADLINE_S
        self._timer: Timer = self._clock.call_at(self._at, self._fire)

    def _fire(self) -> None:
        if self._clock.now() - self._at > LAG_S:
            self._arm()
            return
        self.passed = True
        self._on_pass()

    def cancel(self) -> None:
        self._timer.cancel()
