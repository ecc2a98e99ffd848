"""One pool as a policy makes it: ledger, dispatcher, engines and control loop, and how they hang together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from extproc.clock import Clock
from extproc.config import EnginesPolicy, Policy, PoolPolicy, fingerprint
from extproc.control import ControlLoop
from extproc.controllers.compose import PoolController
from extproc.dispatcher import Dispatcher
from extproc.engines.scraper import EngineStatus, Scraper
from extproc.levels import Levels
from extproc.model import UNLIMITED, PoolState, Priority
from extproc.ports import FleetSource, Observer, Publisher
from extproc.snapshots import EngineSnapshot, PoolSnapshot, QueueSnapshot
from extproc.state.local import LocalLedger
from extproc.state.quota import SharedQuota
from extproc.state.redis import SharedPool

ENVOY_MARGIN_S = 1.0
"""No wait comes closer to Envoy's maximum than this: a late answer would let the request pass."""

STANDS_BY = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED), reason="stands-by")
"""What a process shows that would lead, while another does: of what holds it hears nothing."""


class Engines(FleetSource, Protocol):
    """A pool's engines as something watches them: `Scraper`, over HTTP."""

    def use(self, policy: EnginesPolicy, *, stale_after_s: float) -> None: ...

    def statuses(self) -> tuple[EngineStatus, ...]: ...

    async def run(self) -> None:
        """Watches until cancelled."""


class MakeEngines(Protocol):
    """Makes the `Engines` of one pool."""

    def __call__(self, policy: EnginesPolicy, *, stale_after_s: float, observer: Observer, clock: Clock) -> Engines: ...


class Store(Protocol):
    """Where replicas share their pools: `RedisState`."""

    def pool(self, name: str, initial: PoolState) -> SharedPool: ...

    def quota(self, replicas: Callable[[], int]) -> SharedQuota: ...


class Pool:
    """One pool's parts and how they hang together."""

    def __init__(
        self,
        pool: PoolPolicy,
        policy: Policy,
        *,
        scrape: bool,
        clock: Clock,
        observer: Observer,
        wall: Callable[[], float],
        store: Store | None = None,
        watch: MakeEngines = Scraper,
    ) -> None:
        self.name = pool.name
        self.leaving = False
        """No policy names it any more: it takes nobody new, and goes once nothing is held and nobody waits."""
        self._clock = clock
        self._scrape = scrape
        self._policy = policy
        initial = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
        local = LocalLedger(initial, clock)
        self.shared = store.pool(pool.name, initial) if store else None
        self.ledger = self.shared.ledger if self.shared else local
        self.publisher: Publisher = self.shared or local
        self.dispatcher = Dispatcher(
            pool,
            policy.queues,
            retry=policy.retry_after,
            longest_wait_s=_longest_wait_s(policy),
            ledger=self.ledger,
            clock=clock,
            observer=observer,
            levels=Levels(_secret(pool, policy)),
            wall=wall,
            new_future=asyncio.get_running_loop().create_future,
        )
        self.scraper = watch(
            self._engines(pool), stale_after_s=policy.failure.stale_after_s, observer=observer, clock=clock
        )
        self._controller = PoolController(pool, queues=policy.queues, failure=policy.failure)
        if self.shared:
            self.shared.tells(self.dispatcher)
            self.shared.ledger.goes_by(fingerprint(policy))
        self.control = ControlLoop(
            self._controller,
            self.publisher,
            fleet=self.scraper,
            demand=self.shared or self.dispatcher,
            clock=clock,
            initial=self.ledger.state,
        )
        self.control.step()  # the first request already meets a limit

    def use(self, pool: PoolPolicy, policy: Policy) -> None:
        """A new policy: what is held, who waits, and what was learned of traffic and engines stay."""
        self.leaving = False
        self._policy = policy
        before = self.scraper.fleet().configured
        self.scraper.use(self._engines(pool), stale_after_s=policy.failure.stale_after_s)
        self.dispatcher.use(
            pool,
            policy.queues,
            retry=policy.retry_after,
            longest_wait_s=_longest_wait_s(policy),
            secret=_secret(pool, policy),
        )
        memory = self._controller.memory
        if set(before).isdisjoint(self.scraper.fleet().configured):
            memory = replace(memory, started_at=None, seen=False)  # engines not asked yet are no outage
        self._controller = PoolController(pool, queues=policy.queues, failure=policy.failure, memory=memory)
        self.control.use(self._controller)
        if self.shared:
            self.shared.ledger.goes_by(fingerprint(policy))

    async def scrape(self) -> None:
        """Until cancelled: all the time, or where the pool is shared, while this process is in charge of it."""
        if self.shared is None:
            await self.scraper.run()
            return
        while True:
            await self.shared.in_charge.wait()
            self._controller.memory = replace(self._controller.memory, started_at=None, seen=False)
            async with asyncio.TaskGroup() as tasks:
                scraping = tasks.create_task(self.scraper.run(), name=f"scrape {self.name}")
                await self.shared.relieved.wait()
                scraping.cancel()

    async def share(self) -> None:
        """Until cancelled: what is between this pool and the other replicas; nothing where there are none."""
        if self.shared is not None:
            await self.shared.run()

    @property
    def gone(self) -> bool:
        """Nothing is left of a pool that was leaving: nothing is held and nobody waits."""
        held = any(load.slots > 0 for load in self.dispatcher.in_use)
        return self.leaving and not held and not self.dispatcher.bands.count

    def snapshot(self) -> PoolSnapshot:
        now = self._clock.now()
        dispatcher = self.dispatcher
        demand = dispatcher.demand(now)
        p0, p1, p2 = (self._queue(priority, now) for priority in Priority)
        share = self.shared.snapshot() if self.shared else None
        return PoolSnapshot(
            name=self.name,
            leaving=self.leaving,
            state=STANDS_BY if share is not None and share.stands_by else dispatcher.state,
            queues=(p0, p1, p2),
            in_use=dispatcher.in_use,
            held=self.ledger.total if self.shared else sum(dispatcher.in_use, self.ledger.ghosts),
            ghosts=self.ledger.ghosts,
            drain_per_s=demand.drain_per_s,
            engines=() if share is not None and share.follows else self._engine_snapshots(now),
            share=share,
        )

    def _engine_snapshots(self, now: float) -> tuple[EngineSnapshot, ...]:
        reporting = {s.engine for s in self.scraper.fleet().reporting(now, self._policy.failure.stale_after_s)}
        return tuple(_engine(status, status.engine in reporting) for status in self.scraper.statuses())

    def _engines(self, pool: PoolPolicy) -> EnginesPolicy:
        return pool.engines if self._scrape else EnginesPolicy()

    def _queue(self, priority: Priority, now: float) -> QueueSnapshot:
        band = self.dispatcher.bands[priority]
        oldest = band.oldest()
        return QueueSnapshot(
            name=band.policy.name,
            max_size=band.policy.max_queue_size,
            waiting=band.count,
            waiting_load=band.load,
            oldest_wait_s=now - oldest.arrived if oldest else None,
            retry_after_s=self.dispatcher.retry_after_s(priority),
        )


def _longest_wait_s(policy: Policy) -> float:
    return policy.envoy.max_message_timeout_s - ENVOY_MARGIN_S


def _secret(pool: PoolPolicy, policy: Policy) -> bytes:
    """For the pool's levels: the same on every replica with this policy, and nothing that a client knows, unless it can guess
    the whole policy. Another policy deals everybody anew."""
    return f"{fingerprint(policy)} {pool.name}".encode()


def _engine(status: EngineStatus, reporting: bool) -> EngineSnapshot:
    return EngineSnapshot(
        engine=status.engine,
        reporting=reporting,
        result=status.result.value if status.result else "",
        age_s=status.age_s,
        last_error=status.last_error or None,
        sample=status.sample,
        filtered=status.filtered,
    )
