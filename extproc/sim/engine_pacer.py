"""Runs an engine model in real time: a step, its duration on the clock, its tokens, the next step. No task, no polling.

Deadlines follow each other without drift: a step begins when the one before it should have ended. Small lags are made
up for; a larger one (the process was stopped, or has too little CPU) is counted and not made up for, because no real
engine would either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extproc.clock import Clock, Timer
from extproc.sim.engine import EngineModel, Gauges, Refusal, SimRequest, StepResult

MADE_UP_S = 0.05
"""Lag up to this is made up for by shorter waits, seconds."""


class Receiver(Protocol):
    """Takes one sequence's tokens. Must be cheap, must not block."""

    def token(self) -> None:
        """One more token, not the last."""

    def last(self) -> None:
        """The last token."""

    def cut(self) -> None:
        """The engine gave the sequence up; no further token comes."""


@dataclass(slots=True)
class Lateness:
    """How far the process fell behind its engine's time, seconds."""

    steps: int = 0
    """Steps that came later than `MADE_UP_S`."""
    lost_s: float = 0.0
    """Their lag, summed: time in which the engine stood still without meaning to."""
    worst_s: float = 0.0


class EnginePacer:
    """One engine model, its clock and the receivers of its tokens."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        self.model = model
        self.gauges = Gauges()
        """As of the last step that ended: what a real engine shows."""
        self.lateness = Lateness()
        self._clock = clock
        self._receivers: dict[int, Receiver] = {}
        self._timer: Timer | None = None
        self._due = 0.0

    def add(self, requests: Sequence[SimRequest], receivers: Sequence[Receiver]) -> list[int] | Refusal:
        """All sequences of one request, or none of them. Returns their handles."""
        for request in requests:
            refusal = self.model.refusal(request, len(requests))
            if refusal is not None:
                self.model.stats.refused_queue_full += refusal is Refusal.QUEUE_FULL
                return refusal
        now = self._clock.now()
        handles: list[int] = []
        for request, receiver in zip(requests, receivers, strict=True):
            handle = self.model.add(now, request)
            assert isinstance(handle, int), "checked above, and nothing ran since"
            self._receivers[handle] = receiver
            handles.append(handle)
        if self._timer is None:
            self._due = now
            self._timer = self._clock.call_at(now, self._step)
        return handles

    def abort(self, handles: Sequence[int]) -> int:
        """Nobody listens any more. Returns how many of them had not ended."""
        for handle in handles:
            self._receivers.pop(handle, None)
        return sum(self.model.abort(handle) for handle in handles)

    def cut_all(self) -> None:
        """Gives up everything inside, and tells the receivers."""
        receivers = dict(self._receivers)
        self.abort(tuple(receivers))
        for receiver in receivers.values():
            receiver.cut()

    def stop(self) -> None:
        """Stands still for good."""
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        result = self.model.step(self._due)
        if not result.duration_s:
            self._timer = None
            self.gauges = self.model.gauges()
            return
        self._due += result.duration_s
        self._timer = self._clock.call_at(self._due, lambda: self._deliver(result))

    def _deliver(self, result: StepResult) -> None:
        lag = self._clock.now() - self._due
        if lag > MADE_UP_S:
            self._due += lag
            self.lateness.steps += 1
            self.lateness.lost_s += lag
            self.lateness.worst_s = max(lag, self.lateness.worst_s)
        self.gauges = self.model.gauges()
        receivers = self._receivers
        for handle in result.streaming:
            if handle in receivers:
                receivers[handle].token()
        for handle in result.finished:
            receiver = receivers.pop(handle, None)
            if receiver is not None:
                receiver.last()
        self._step()
