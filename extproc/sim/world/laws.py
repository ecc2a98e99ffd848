"""Control laws that exist only to be compared with: a binary gate, and limits that never change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from extproc.fleet import Fleet
from extproc.model import NOTHING, UNLIMITED, Demand, Load, PoolState

_CLOSED = (NOTHING, NOTHING, NOTHING)
_OPEN = (UNLIMITED, UNLIMITED, UNLIMITED)


@dataclass(frozen=True, slots=True)
class Gate:
    """Engines are open or closed, as by the saturation detector of Kubernetes' inference gateway: closed above
    `waiting` requests in the engine's queue or `kv_usage`. While all are closed nobody is admitted."""

    waiting: int = 5
    kv_usage: float = 0.8
    stale_after_s: float = 1.0

    def over(self, engines: int) -> Gate:  # noqa: ARG002 - it looks at each by itself
        return self

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
class Constant:
    """Limits that never change: tokens and slots per priority, for each engine. The oracle's, which knows all lengths."""

    tokens: tuple[float, float, float]
    slots: tuple[float, float, float] = (math.inf, math.inf, math.inf)
    engines: int = 1

    def over(self, engines: int) -> Constant:
        """For a pool of so many."""
        return replace(self, engines=engines)

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:  # noqa: ARG002
        each = (Load(tokens, slots) for tokens, slots in zip(self.tokens, self.slots, strict=True))
        p0, p1, p2 = (load.scaled(self.engines) for load in each)
        return PoolState(limits=(p0, p1, p2), reason="constant", at=now)


Law = Gate | Constant
