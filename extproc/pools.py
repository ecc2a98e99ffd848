"""What a policy makes of the service: its pools, and the admission over them. A new policy goes in while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Protocol

from extproc.admission import Admission
from extproc.clock import Clock
from extproc.config import EnginesPolicy, Policy, PoolPolicy
from extproc.control import ControlLoop
from extproc.controllers.compose import PoolController
from extproc.dispatcher import Dispatcher
from extproc.engines.scraper import EngineStatus, Scraper
from extproc.model import UNLIMITED, PoolState, Priority
from extproc.ports import FleetSource, Observer, Publisher
from extproc.snapshots import EngineSnapshot, PoolSnapshot, QueueSnapshot
from extproc.state.local import LocalLedger
from extproc.state.redis import SharedPool

ENVOY_MARGIN_S = 1.0
"""No wait comes closer to Envoy's maximum than this: a late answer would let the request pass."""


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
        random: Random,
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
            random=random,
            new_future=asyncio.get_running_loop().create_future,
        )
        self.scraper = watch(
            self._engines(pool), stale_after_s=policy.failure.stale_after_s, observer=observer, clock=clock
        )
        self._controller = PoolController(pool, queues=policy.queues, failure=policy.failure)
        if self.shared:
            self.shared.tells(self.dispatcher)
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
        self.dispatcher.use(pool, policy.queues, retry=policy.retry_after, longest_wait_s=_longest_wait_s(policy))
        memory = self._controller.memory
        if set(before).isdisjoint(self.scraper.fleet().configured):
            memory = replace(memory, started_at=None, seen=False)  # engines not asked yet are no outage
        self._controller = PoolController(pool, queues=policy.queues, failure=policy.failure, memory=memory)
        self.control.use(self._controller)

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
        reporting = {s.engine for s in self.scraper.fleet().reporting(now, self._policy.failure.stale_after_s)}
        return PoolSnapshot(
            name=self.name,
            leaving=self.leaving,
            state=dispatcher.state,
            queues=(p0, p1, p2),
            in_use=dispatcher.in_use,
            held=self.ledger.total if self.shared else sum(dispatcher.in_use, self.ledger.ghosts),
            ghosts=self.ledger.ghosts,
            drain_per_s=demand.drain_per_s,
            engines=tuple(_engine(status, status.engine in reporting) for status in self.scraper.statuses()),
            share=self.shared.snapshot() if self.shared else None,
        )

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


class Pools:
    """The first policy and every later one come by `use`; `run` keeps the loops of whatever pools there are.

    `policy` and `admission` are the ones in force. A request that took an `Admission` keeps it: the pools behind it stay
    until they are idle, whether a policy still names them or not.
    """

    policy: Policy
    admission: Admission

    def __init__(
        self,
        policy: Policy,
        *,
        scrape: bool,
        clock: Clock,
        observer: Observer,
        random: Random,
        environment: Mapping[str, str] = MappingProxyType({}),
        store: Store | None = None,
        watch: MakeEngines = Scraper,
    ) -> None:
        """`environment`: where a policy's `env:NAME` looks. `store` None: one replica. Raises as `use` does."""
        self._store = store
        self._watch = watch
        self._environment = environment
        self._scrape = scrape
        self._clock = clock
        self._observer = observer
        self._random = random
        self._pools: dict[str, Pool] = {}
        self._running: set[Pool] = set()
        self._changed = asyncio.Event()
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Puts a policy in force, in one step: no request sees half of it.

        A pool is known by its name: one that is renamed leaves, and another comes. Raises ConfigError for what a file
        alone does not show, such as a variable that is not set; then nothing has changed.
        """
        named = {pool.name: self._pools.get(pool.name) or self._new(pool, policy) for pool in policy.pools}
        dispatchers = {name: pool.dispatcher for name, pool in named.items()}
        admission = Admission(policy, dispatchers, self._observer, environment=self._environment)
        for pool in policy.pools:
            if pool.name in self._pools:
                named[pool.name].use(pool, policy)
        others = {name: pool for name, pool in self._pools.items() if name not in named}
        for other in others.values():
            other.leaving = True
        self._pools = named | others
        self.policy, self.admission = policy, admission
        self._changed.set()

    def _new(self, pool: PoolPolicy, policy: Policy) -> Pool:
        return Pool(
            pool,
            policy,
            scrape=self._scrape,
            clock=self._clock,
            observer=self._observer,
            random=self._random,
            store=self._store,
            watch=self._watch,
        )

    def control(self, name: str) -> ControlLoop:
        """The control loop of the pool of this name; raises KeyError where there is none."""
        return self._pools[name].control

    async def run(self) -> None:
        """Until cancelled. A bug in any pool's loop ends it all, loudly."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for pool in self._pools.values():
                    if pool not in self._running:
                        self._running.add(pool)
                        tasks.create_task(self._run(pool), name=f"pool {pool.name}")
                await self._changed.wait()

    async def _run(self, pool: Pool) -> None:
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(pool.scrape(), name=f"scrape {pool.name}"),
                tasks.create_task(pool.share(), name=f"share {pool.name}"),
            ]
            await pool.control.run(over=lambda: pool.gone)
            # Nothing has run since `gone` held: no policy has called it back. Whoever was still sending its body is told
            # to try again, and meets the pools of today.
            del self._pools[pool.name]
            self._running.discard(pool)
            pool.dispatcher.drain()
            for loop in loops:
                loop.cancel()

    def drain(self) -> None:
        """Nobody is let in from now on; who waits is answered `draining`."""
        for pool in self._pools.values():
            pool.dispatcher.drain()

    def snapshots(self) -> tuple[PoolSnapshot, ...]:
        """Those in force in the policy's order, then those that leave."""
        return tuple(pool.snapshot() for pool in self._pools.values())
