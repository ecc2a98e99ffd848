"""Controller `fixed`: a limit that does not move by itself, or one that follows the engines' KV capacity alone."""

from __future__ import annotations

import math

from extproc.config import FailurePolicy, FixedPolicy, LimitPolicy
from extproc.fleet import Fleet
from extproc.model import UNLIMITED, Demand, Load, PoolState


def as_load(limit: LimitPolicy) -> Load:
    """A limit in the policy as a load; what it leaves open is unbounded."""
    tokens = math.inf if limit.tokens is None else float(max(0, limit.tokens))
    slots = math.inf if limit.requests is None else float(max(0, limit.requests))
    return Load(tokens, slots)


class Fixed:
    """Stateless. The same limit for every priority, no rejection, no saturation of its own."""

    def __init__(self, policy: FixedPolicy, failure: FailurePolicy) -> None:
        self._policy = policy
        self._stale_after_s = failure.stale_after_s

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:  # noqa: ARG002
        """`auto`: theta x the KV tokens of the engines that report, and so many sequences for each of them, so that a lost
        engine's share goes at once.

        An engine that reports without its capacity adds none (missing is not a guess). No capacity known at all:
        `UNLIMITED`, that is, this law does not know; what holds then is decided in the composition.
        """
        reporting = fleet.reporting(now, self._stale_after_s)
        if isinstance(self._policy.limit, LimitPolicy):
            limit, reason = as_load(self._policy.limit), "fixed"
        else:
            capacities = [sample.kv_capacity_tokens for sample in reporting if sample.kv_capacity_tokens]
            slots = float(self._policy.sequences_per_engine * len(capacities))
            known = bool(capacities)
            limit = Load(self._policy.theta * sum(capacities), slots) if known else UNLIMITED
            reason = "auto" if known else "capacity-unknown"
        return PoolState(
            limits=(limit, limit, limit),
            pressure_at=previous.pressure_at,
            reason=reason,
            at=now,
            engines_reporting=len(reporting),
        )
