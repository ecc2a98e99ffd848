"""Controller `pid`: tokens in flight and admission probability from KV usage, in velocity form
(Astrom and Hagglund, PID Controllers, 1995, sections 3.5 and 9.3).

The plant integrates: d(usage)/dt = (admitted - drained) / capacity, in tokens per second. Its gain K is the usage that
would come per second if all were admitted, offered / capacity; the controller's is divided by it, so that `kp` means
the same at any load. The tokens in flight, as a share of the cache, stand for the usage itself: they move by what the
same expression says of one second. A first sign of trouble is late by nature: a request admitted now fills the cache for as long as
it runs. `tests/sim/test_known_failings.py` shows what comes of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from extproc.config import FailurePolicy, PidPolicy
from extproc.controllers.shed import spread
from extproc.controllers.watermark import mean_usage
from extproc.fleet import Fleet
from extproc.model import UNLIMITED, Demand, Load, PoolState

PERIOD_S = 0.05
"""The law's own step, whatever rate it is called at: differences over less are noise."""
RESTART_S = 1.0
"""After a longer gap the errors before it say nothing of the speed of change."""
LEAST_PLANT_GAIN = 0.05
"""Per second. With next to nothing offered the gain would grow without bound; it also stands for a gain unknown."""
_EARLY_S = 1e-6
"""Clock sums are not exact: a step as good as due is due."""


@dataclass(frozen=True, slots=True)
class PidMemory:
    """`admission`: share of newcomers let in, 0..1. `share`: tokens in flight over the engines' KV tokens.

    `error`, `error_before`: setpoint less usage at the last two steps; `at`: of the last. None before the first.
    """

    admission: float = 1.0
    share: float | None = None
    error: float | None = None
    error_before: float = 0.0
    at: float | None = None


class Pid:
    """Steps every 50 ms while KV usage is known, and holds its last word while it is not."""

    def __init__(self, policy: PidPolicy, failure: FailurePolicy, memory: PidMemory | None = None) -> None:
        self._policy = policy
        self._stale_after_s = failure.stale_after_s
        self.memory = memory or PidMemory()

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        reporting = fleet.reporting(now, self._stale_after_s)
        usage = mean_usage(reporting)
        capacity_tokens = sum(sample.kv_capacity_tokens or 0 for sample in reporting)
        memory = self.memory
        if usage is not None and (memory.at is None or now - memory.at >= PERIOD_S - _EARLY_S):
            self.memory = memory = self._moved(now, usage, demand=demand, capacity_tokens=capacity_tokens)
        limit = Load(self._share(memory) * capacity_tokens, math.inf) if capacity_tokens else UNLIMITED
        return PoolState(
            limits=(limit, limit, limit),
            rejection=spread(1.0 - memory.admission, self._policy.shed, demand),
            saturation=usage or 0.0,
            pressure_at=previous.pressure_at,
            reason="pid" if usage is not None else "kv-usage-unknown",
            at=now,
            engines_reporting=len(reporting),
        )

    def _moved(self, now: float, usage: float, *, demand: Demand, capacity_tokens: int) -> PidMemory:
        policy, memory = self._policy, self.memory
        error = policy.setpoint - usage
        if memory.at is None or memory.error is None or now - memory.at > RESTART_S:
            return PidMemory(memory.admission, self._share(memory), error, error, now)
        elapsed_s = now - memory.at
        change = error - memory.error
        bend = change - (memory.error - memory.error_before)
        moves = policy.kp * change + policy.kd * bend / elapsed_s
        grows = policy.ki * error * elapsed_s
        offers = sum(demand.offered_per_s) > 0
        held = sum((load.tokens for load in demand.in_use), 0.0)
        share = self._share(memory)
        # Conditional integration: what an output at its bound, or one that binds nobody, could not bring about must not
        # be summed up for later.
        raises_chance = grows if offers and (grows < 0 or memory.admission < 1) else 0.0
        raises_share = grows if grows < 0 or held >= 0.9 * share * capacity_tokens else 0.0
        return PidMemory(
            admission=_clamp(memory.admission + (moves + raises_chance) / _plant_gain(demand, capacity_tokens), 0, 1),
            share=_clamp(share + moves + raises_share, policy.min_share, policy.max_share),
            error=error,
            error_before=memory.error,
            at=now,
        )

    def _share(self, memory: PidMemory) -> float:
        """Starts at the setpoint: were all admitted tokens in the cache at once, that is what it would hold."""
        share = self._policy.setpoint if memory.share is None else memory.share
        return _clamp(share, self._policy.min_share, self._policy.max_share)


def _plant_gain(demand: Demand, capacity_tokens: int) -> float:
    """Usage per second that would come if all that is offered were admitted."""
    if capacity_tokens <= 0:
        return LEAST_PLANT_GAIN
    offered_tokens_per_s = sum(demand.offered_per_s) * demand.mean_cost.tokens
    return max(LEAST_PLANT_GAIN, offered_tokens_per_s / capacity_tokens)


def _clamp(value: float, least: float, most: float) -> float:
    """Outputs are stored as clamped: in velocity form that alone keeps them from winding up."""
    return min(most, max(least, value))
