"""Who may wait and who may go, as one pool stands: its drop policies, its traffic and its state put together. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from extproc.meters import Traffic
from extproc.model import Load, Outcome, PoolState
from extproc.queues.bands import Bands
from extproc.submission import Submission

T = TypeVar("T")


class Judgement(Generic[T]):
    """Reads the pool's queues and traffic; `total`: load in use over all replicas, ghost load included."""

    def __init__(self, bands: Bands[T], traffic: Traffic) -> None:
        self._bands = bands
        self._traffic = traffic

    def pressure(self, state: PoolState, total: Load) -> bool:
        """The pool is at or above its high watermark, by what the engines show or by what is in use."""
        return max(state.saturation, total.share_of(state.limits[0])) >= state.pressure_at

    def expected_wait_s(self, submission: Submission, state: PoolState, total: Load) -> float | None:
        """How long it would wait; None while the drain is unknown."""
        ahead = self._bands.ahead_of(submission.priority, submission.tenant, self._traffic.mean_cost)
        return self._traffic.expected_wait_s(ahead, total, state, submission.priority)

    def refuse(
        self, submission: Submission, state: PoolState, total: Load, *, now: float, waits: bool
    ) -> Outcome | None:
        """Why a request must not wait, where it `waits`, nor go, where it could at once: it must leave the place to others."""
        pressure = self.pressure(state, total)
        if waits:
            return self._bands.refuse(
                submission,
                now=now,
                pressure=pressure,
                expected_wait_s=self.expected_wait_s(submission, state, total),
                useful_wait_s=submission.useful_wait_s(state),
            )
        left = state.limits[submission.priority] - total
        mean = self._traffic.mean_cost
        return Outcome.SHED if self._bands.turns_away(submission, pressure=pressure, left=left, mean=mean) else None
