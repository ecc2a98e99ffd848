"""What the running service looks like at one moment, as plain values: the spine fills them, the admin edge shows them.

Priorities are positions: index 0 is P0. None means unknown, never zero; a load's `inf` means no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from extproc.fleet import EngineSample
from extproc.model import NOTHING, Allowance, Load, PoolState


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine as its scraper sees it.

    `reporting`: young enough to be believed by the controllers. `age_s`: of `sample`, None if it never answered.
    `result`: how the last scrape went (the label of `extproc_scrapes_total`), empty before the first.
    `filtered`: it is read by the cheap filtered scrape.
    """

    engine: str
    reporting: bool = False
    result: str = ""
    age_s: float | None = None
    last_error: str | None = None
    sample: EngineSample | None = None
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One priority's queue in one pool. `oldest_wait_s`: of its head, None while empty.

    `retry_after_s`: what a client refused now is told, about.
    """

    name: str
    max_size: int
    waiting: int = 0
    waiting_load: Load = NOTHING
    oldest_wait_s: float | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """How a pool stands with the other replicas. `replicas`: heard of lately, this one included. `leading`: this process
    runs the controllers for all. `cut_off`: it cannot ask, and goes on alone; `trouble`: why, None where it can. `differing`: of
    the replicas, how many go by another policy. `stands_by`: it decides on no requests, and another process leads."""

    replicas: int
    leading: bool
    cut_off: bool
    differing: int = 0
    trouble: str | None = None
    stands_by: bool = False

    @property
    def follows(self) -> bool:
        """Another process watches the engines."""
        return not self.leading and not self.cut_off


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool. `in_use`: this replica's, per priority. `held`: of all replicas together, ghost load included.

    `leaving`: the policy names it no more; it goes once its last request has ended. `engines`: none where another process
    watches them.
    """

    name: str
    state: PoolState
    queues: tuple[QueueSnapshot, QueueSnapshot, QueueSnapshot]
    in_use: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
    held: Load = NOTHING
    ghosts: Load = NOTHING
    drain_per_s: Load | None = None
    engines: tuple[EngineSnapshot, ...] = ()
    share: ShareSnapshot | None = None

    @property
    def follows(self) -> bool:
        """Another process watches the engines."""
        return self.share is not None and self.share.follows

    @property
    def engines_reporting(self) -> int:
        """To whoever watches them."""
        return self.state.engines_reporting if self.follows else sum(engine.reporting for engine in self.engines)

    leaving: bool = False


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """A tenant that has a quota, and what it may still use now, as far as this replica knows; inf where it is not limited."""

    name: str
    quota: Allowance
    tokens_left: float
    requests_left: float

    @property
    def share_left(self) -> float:
        """Of its burst, the smaller of the two: 0..1."""
        whole = (self.quota.tokens_per_s * self.quota.burst_s, self.quota.requests_per_s * self.quota.burst_s)
        left = (self.tokens_left, self.requests_left)
        return min((part / all_ for part, all_ in zip(left, whole, strict=True) if all_ < math.inf), default=1.0)


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """The policy in force. `hash`: short, the same for the same policy. `loaded_at`: seconds since the epoch.

    `last_error`: why a newer file was refused; None while the file on disk is the one in force.
    """

    file: str
    hash: str
    loaded_at: float
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class WireSnapshot:
    """The gRPC side. `warnings`: sentences for people, such as an Envoy mode that lacks trailers."""

    address: str
    serving: bool
    streams: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The whole service. `at`: clock seconds, the scale of `PoolState.at`. `loop_lag_s`: worst of the last seconds."""

    at: float
    started_at: float
    policy: PolicySnapshot
    wire: WireSnapshot
    pools: tuple[PoolSnapshot, ...] = ()
    tenants: tuple[TenantSnapshot, ...] = ()
    draining: bool = False
    loop_lag_s: float | None = None


class StateSource(Protocol):
    """Where the admin edge sees the service. Called on the event loop; must be cheap and must not wait."""

    def snapshot(self) -> ServiceSnapshot: ...
