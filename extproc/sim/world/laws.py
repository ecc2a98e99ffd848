"""Control laws that exist only to be compared with: a binary gate, and none."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.fleet import Fleet
from extproc.model import NOTHING, UNLIMITED, Demand, PoolState

_CLOSED = (NOTHING, NOTHING, NOTHING)
_OPEN = (UNLIMITED, UNLIMITED, UNLIMITED)


@dataclass(frozen=True, slots=True)
class Gate:
    """Engines are open or closed, as by the saturation detector of Kubernetes' inference gateway: closed above
    `waiting` requests in the engine's queue or `kv_usage`. While all are closed nobody is admitted."""

    waiting: int = 5
    kv_usage: float = 0.8
    stale_after_s: float = 1.0

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:  # noqa: ARG002
        reporting = fleet.reporting(now, self.stale_after_s)
        is_open = any(
            (sample.waiting or 0) <= self.waiting and (sample.kv_usage or 0.0) <= self.kv_usage for sample in reporting
        )
        usage = max((sample.kv_usage or 0.0 for sample in reporting), default=0.0)
        return PoolState(
            limits=_OPEN if is_open else _CLOSED,
            saturation=usage if is_open else 1.0,
            reason="open" if is_open else "closed",
            at=now,
            engines_reporting=len(reporting),
        )


@dataclass(frozen=True, slots=True)
class Open:
    """No limit."""

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:  # noqa: ARG002
        return PoolState(limits=_OPEN, reason="none", at=now)


Law = Gate | Open
