"""The loop's lag, on a clock turned by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.admin.lag import KEPT, PERIOD_S, LoopLag


class HandClock:
    """One timer at a time; it fires when the test says so, at the moment the test says."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: float | None = None
        self._callback: Callable[[], None] | None = None

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> HandClock:
        self.due, self._callback = when, callback
        return self

    def cancel(self) -> None:
        self.due = None

    def fire(self, *, late_s: float = 0.0) -> None:
        assert self.due is not None
        assert self._callback is not None
        self.time = self.due + late_s
        self._callback()


def test_unknown_before_the_first_measurement() -> None:
    lag = LoopLag(HandClock())
    lag.start()
    assert lag.worst_s() is None


def test_the_worst_of_the_last_seconds_is_kept() -> None:
    clock = HandClock()
    lag = LoopLag(clock)
    lag.start()
    clock.fire(late_s=0.02)
    clock.fire(late_s=1.0)
    clock.fire()
    assert lag.worst_s() == pytest.approx(1.0)


def test_an_old_stall_is_forgotten_after_ten_seconds() -> None:
    clock = HandClock()
    lag = LoopLag(clock)
    lag.start()
    clock.fire(late_s=1.0)
    for _ in range(KEPT):
        clock.fire()
    assert lag.worst_s() == pytest.approx(0.0)


def test_one_stall_is_counted_once() -> None:
    clock = HandClock()
    lag = LoopLag(clock)
    lag.start()
    clock.fire(late_s=5.0)
    assert clock.due == pytest.approx(5.0 + 2 * PERIOD_S)


def test_stopping_takes_the_timer_away() -> None:
    clock = HandClock()
    lag = LoopLag(clock)
    lag.start()
    lag.stop()
    lag.stop()
    assert clock.due is None
