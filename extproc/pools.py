"""What a policy makes of the service: its pools, and the admission over them. A new policy goes in while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from extproc.admission import Admission
from extproc.clock import Clock
from extproc.config import Policy, PoolPolicy
from extproc.control import ControlLoop
from extproc.engines.scraper import Scraper
from extproc.metering import tenant_snapshots
from extproc.pool import MakeEngines, Pool, Store
from extproc.ports import Observer, Quota
from extproc.snapshots import PoolSnapshot, TenantSnapshot
from extproc.state.local import LocalQuota
from extproc.tenants import tenant_of


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
        wall: Callable[[], float],
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
        self._wall = wall
        self._pools: dict[str, Pool] = {}
        self._shared_quota = store.quota(self._replicas) if store else None
        self._quota: Quota = self._shared_quota or LocalQuota(clock)
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
        admission = Admission(policy, dispatchers, self._observer, quota=self._quota, environment=self._environment)
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
            wall=self._wall,
            store=self._store,
            watch=self._watch,
        )

    def control(self, name: str) -> ControlLoop:
        """The control loop of the pool of this name; raises KeyError where there is none."""
        return self._pools[name].control

    async def run(self) -> None:
        """Until cancelled. A bug in any pool's loop ends it all, loudly."""
        async with asyncio.TaskGroup() as tasks:
            if self._shared_quota is not None:
                tasks.create_task(self._shared_quota.run(), name="quotas")
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

    def tenant_snapshots(self) -> tuple[TenantSnapshot, ...]:
        return tenant_snapshots(map(tenant_of, self.policy.tenants), self._quota)

    def _replicas(self) -> int:
        """Of this service, as last heard over any pool."""
        return max((pool.shared.ledger.replicas for pool in self._pools.values() if pool.shared), default=1)
