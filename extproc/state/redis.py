"""The shared state of all pools: one connection's worth of calls, one subscription to their wakes, and a part per pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import Demand, PoolState
from extproc.state.asking import Observe, SharedLedger
from extproc.state.demand import merged
from extproc.state.lead import Lead
from extproc.state.link import Link
from extproc.state.scripts import keys_of

_LISTEN_AGAIN_S = 0.2
_STARTING = "starting"
_log = structlog.get_logger(__name__)


def _no_demand(_now: float) -> Demand:
    return Demand()


def _ignore(_lead_s: float) -> None:
    """Who may not lead does not care who does."""


class SharedPool:
    """One pool's ledger and lead. Implements `ports.Publisher` and `ports.DemandSource` for its control loop, which is to
    run while `in_charge`: for all replicas while this process leads, for itself while it is cut off."""

    def __init__(
        self,
        pool: str,
        process: str,
        *,
        link: Link,
        prefix: str,
        initial: PoolState,
        clock: Clock,
        observe: Observe,
        may_lead: bool,
    ) -> None:
        keys = keys_of(prefix, pool)
        self.pool = pool
        self.channel = keys.channel
        self.in_charge = asyncio.Event()
        self.relieved = asyncio.Event()
        self.relieved.set()
        self._own: Callable[[float], Demand] = _no_demand
        self.lead = (
            Lead(pool, process, link=link, keys=keys, clock=clock, on_change=self._changed) if may_lead else None
        )
        self.ledger = SharedLedger(
            pool,
            process,
            link=link,
            keys=keys,
            initial=initial,
            clock=clock,
            on_lead=self.lead.heard if self.lead else _ignore,
            on_change=self._changed,
            observe=observe,
        )

    @property
    def leading(self) -> bool:
        return self.lead is not None and self.lead.leading

    def publish(self, state: PoolState) -> None:
        """A state that was made before the engines were heard never replaces a shared one, and one made without them, by a
        process that does not scrape, neither."""
        if _STARTING in state.reason and self.ledger.shared:
            return
        if self.lead is None:
            if not self.ledger.shared:
                self.ledger.own(state)
            return
        self.lead.publish(state)
        self.ledger.own(state)

    def tells(self, demand: Callable[[float], Demand]) -> None:
        """This replica's own traffic."""
        self._own = demand
        self.ledger.tells(demand)

    def demand(self, now: float) -> Demand:
        """Of all replicas where this one leads them, else its own."""
        counters = self.lead.counters if self.lead is not None and self.lead.leading else ()
        return merged(counters) if counters else self._own(now)

    def _changed(self) -> None:
        charge = self.leading or self.ledger.cut_off
        (self.in_charge if charge else self.relieved).set()
        (self.relieved if charge else self.in_charge).clear()


class RedisState:
    """All pools of one process. `asks` False: a process without requests, that only leads."""

    def __init__(
        self, url: str, prefix: str, *, process: str, clock: Clock, observe: Observe, may_lead: bool, asks: bool = True
    ) -> None:
        self._link = Link(url)
        self._prefix = prefix
        self._process = process
        self._clock = clock
        self._observe = observe
        self._may_lead = may_lead
        self._asks = asks
        self._pools: list[SharedPool] = []

    def pool(self, name: str, initial: PoolState) -> SharedPool:
        """Before `run`."""
        shared = SharedPool(
            name,
            self._process,
            link=self._link,
            prefix=self._prefix,
            initial=initial,
            clock=self._clock,
            observe=self._observe,
            may_lead=self._may_lead,
        )
        self._pools.append(shared)
        return shared

    async def run(self) -> None:
        """Until cancelled. Trouble with the store is no error here: every pool goes on alone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._asks:
                    tasks.create_task(self._listen(), name="wakes")
                for pool in self._pools:
                    if self._asks:
                        tasks.create_task(pool.ledger.run(), name=f"ask {pool.pool}")
                    if pool.lead is not None:
                        tasks.create_task(pool.lead.run(), name=f"lead {pool.pool}")
        finally:
            await self._close()

    async def _listen(self) -> None:
        """Wakes get lost while this is broken: waiters then ask again by themselves."""
        pools = {pool.channel: pool for pool in self._pools}
        while True:
            try:
                await self._link.listen(list(pools), lambda channel, message: pools[channel].ledger.woken(message))
            except StateUnavailable as error:
                _log.debug("wakes_lost", kind=error.kind)
            await asyncio.sleep(_LISTEN_AGAIN_S)

    async def _close(self) -> None:
        for pool in self._pools:
            if pool.lead is not None:
                await pool.lead.give_up()
        await self._link.close()
