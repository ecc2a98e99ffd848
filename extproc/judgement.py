"""Who may wait and who may go, as one pool stands: its drop policies, its traffic and its state put together. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from extproc.config import DropPolicy
from extproc.meters import Traffic
from extproc.model import Load, Outcome, PoolState
from extproc.queues.bands import Bands
from extproc.submission import Submission

T = TypeVar("T")

CONTENDED_FROM = 0.6
"""Where a full pool is no pressure (`PoolState.pressure_at` 1), what its saturation says from here on: somebody mostly waits."""


class Judgement(Generic[T]):
    """Reads the pool's queues and traffic; `total`: load in use over all replicas, ghost load included."""

    def __init__(self, bands: Bands[T], traffic: Traffic) -> None:
        self._bands = bands
        self._traffic = traffic

    def pressure(self, state: PoolState, total: Load) -> bool:
        """The pool is at or above its high watermark, by what the engines show or by what is in use."""
        return state.saturation >= state.pressure_at or total.share_of(state.limits[0]) >= state.pressure_at

    def contended(self, state: PoolState, total: Load) -> bool:
        """Under pressure, or near it: what one tenant takes now, others lack."""
        near = state.pressure_at >= 1 and state.saturation >= CONTENDED_FROM
        return near or self.pressure(state, total)

    def expected_wait_s(self, submission: Submission, state: PoolState, total: Load) -> float | None:
        """How long it would wait; None while the drain is unknown."""
        ahead = self._bands.ahead_of(submission.priority, submission.tenant, self._traffic.mean_cost)
        return self._traffic.expected_wait_s(ahead, total, state, submission.priority)

    def must_not_wait(
        self, submission: Submission, state: PoolState, total: Load, *, now: float, expected_wait_s: float | None
    ) -> Outcome | None:
        """Why a request that could not go at once is refused; None: it may wait. `expected_wait_s`: as told by it."""
        return self._bands.refuse(
            submission,
            now=now,
            pressure=self.pressure(state, total),
            expected_wait_s=expected_wait_s,
            useful_wait_s=submission.useful_wait_s(state),
        )

    def must_leave_room(self, submission: Submission, state: PoolState, total: Load) -> bool:
        """Whether a request that could go at once is refused: where the drop policy will let nobody wait, a tenant leaves
        room for others instead."""
        band = self._bands[submission.priority]
        if band.policy.drop_policy is not DropPolicy.FAST_REJECT or not self.contended(state, total):
            return False
        left = state.limits[submission.priority] - total
        return band.shares.must_leave_room(submission.tenant, left, self._traffic.mean_cost)
