"""Controller `watermark`: admission probability from KV cache usage, the classical law."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.config import FailurePolicy, WatermarkPolicy
from extproc.controllers.shed import spread
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, PoolState

LEAST_RATE = 0.10
"""Once it refuses at all it refuses at least this share: less would not be felt before the panic watermark."""


def mean_usage(samples: Sequence[EngineSample]) -> float | None:
    """Mean KV usage, 0..1, of the engines that state it; None where none does."""
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    return sum(usages) / len(usages) if usages else None


class Watermark:
    """Stateless: says nothing of limits, only of rejection and saturation.

    An engine that reports without its KV usage is left out of the mean, but its waiting requests count, and it is an
    engine in `maxWaitingPerEngine` x engines: a queue inside an engine is real whatever its cache gauge says.
    """

    def __init__(self, policy: WatermarkPolicy, failure: FailurePolicy) -> None:
        self._policy = policy
        self._failure = failure

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:  # noqa: ARG002
        reporting = fleet.reporting(now, self._failure.stale_after_s)
        rate, saturation, reason = self._law(reporting)
        return PoolState(
            limits=(UNLIMITED, UNLIMITED, UNLIMITED),
            rejection=spread(rate, self._policy.shed, demand),
            saturation=saturation,
            pressure_at=self._policy.high,
            reason=reason,
            at=now,
            engines_reporting=len(reporting),
        )

    def _law(self, reporting: Sequence[EngineSample]) -> tuple[float, float, str]:
        """Share to refuse, saturation, and why. Nothing known of any cache: as blind, and the drop policies act."""
        high, panic = self._policy.high, self._policy.panic
        waiting = sum(sample.waiting or 0 for sample in reporting)
        if waiting > self._policy.max_waiting_per_engine * len(reporting):
            return 1.0, 1.0, "engines-queueing"
        average = mean_usage(reporting)
        if average is None:
            return self._failure.rejection, high, "kv-usage-unknown"
        if average >= panic:
            return 1.0, average, "kv-panic"
        if average > high:
            return min(1.0, max(LEAST_RATE, (average - high) / (panic - high))), average, "kv-high"
        return 0.0, average, "kv-normal"
