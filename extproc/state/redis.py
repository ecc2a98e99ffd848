"""What is shared over Redis, put together: a pool's ledger, its lead, the subscription to its wakes; and tenants' quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import Demand, Latency, PoolState
from extproc.ports import TrafficSource
from extproc.snapshots import ShareSnapshot
from extproc.state.asking import SharedLedger
from extproc.state.demand import merged
from extproc.state.lead import Lead
from extproc.state.link import Line, Link
from extproc.state.quota import SharedQuota
from extproc.state.scripts import keys_of
from extproc.state.watch import Watch

_LISTEN_AGAIN_S = 0.2
_log = structlog.get_logger(__name__)


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
        link: Line,
        prefix: str,
        initial: PoolState,
        clock: Clock,
        watch: Watch,
        may_lead: bool,
        asks: bool,
    ) -> None:
        keys = keys_of(prefix, pool)
        self.pool = pool
        self._channel = keys.channel
        self._link = link
        self._asks = asks
        self.in_charge = asyncio.Event()
        self.relieved = asyncio.Event()
        self.relieved.set()
        self._own: TrafficSource | None = None
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
            watch=watch,
        )

    @property
    def leading(self) -> bool:
        return self.lead is not None and self.lead.leading

    def publish(self, state: PoolState) -> None:
        """For all, where this process leads; for itself, while it is cut off or has never heard a shared one. What a process
        that watches no engines decides never takes the place of a shared state."""
        if self.lead is not None:
            self.lead.publish(state)
        if self.lead is not None or not self.ledger.shared:
            self.ledger.own(state)

    def tells(self, own: TrafficSource) -> None:
        """This replica's own traffic."""
        self._own = own
        self.ledger.tells(own)

    def demand(self, now: float) -> Demand:
        """Of all replicas where this one leads them, else its own."""
        counters = self.lead.counters if self.lead is not None and self.lead.leading else ()
        if counters:
            return merged(counters)
        own = Demand() if self._own is None else self._own.demand(now)
        return replace(own, whole=self._asks and self.ledger.replicas <= 1)

    def take_latencies(self) -> tuple[Latency, ...]:
        """Where this process leads, one for each report of a replica: the means of what finished there since the last. Else
        of its own requests, one each."""
        own = () if self._own is None else self._own.take_latencies()
        return self.lead.take_latencies() if self.lead is not None and self.lead.leading else own

    def snapshot(self) -> ShareSnapshot:
        ledger = self.ledger
        return ShareSnapshot(
            ledger.replicas,
            self.leading,
            ledger.cut_off,
            differing=ledger.differing,
            trouble=ledger.trouble if ledger.cut_off else None,
            stands_by=not self._asks and not self.leading,
        )

    async def run(self) -> None:
        """Until cancelled. Trouble with the store is no error here: the pool goes on alone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._asks:
                    tasks.create_task(self.ledger.run(), name=f"ask {self.pool}")
                    tasks.create_task(self._listen(), name=f"wakes {self.pool}")
                if self.lead is not None:
                    tasks.create_task(self.lead.run(), name=f"lead {self.pool}")
        finally:
            if self.lead is not None:
                await self.lead.give_up()

    async def _listen(self) -> None:
        """Wakes get lost while this is broken: waiters then ask again by themselves."""
        while True:
            try:
                await self._link.listen(self._channel, self.ledger.woken)
            except StateUnavailable as error:
                _log.debug("wakes_lost", pool=self.pool, kind=error.kind)
            await asyncio.sleep(_LISTEN_AGAIN_S)

    def _changed(self) -> None:
        charge = self.leading or self.ledger.cut_off
        (self.in_charge if charge else self.relieved).set()
        (self.relieved if charge else self.in_charge).clear()


class RedisState:
    """What all pools and tenants of one process share: the link, and who we are. `asks` False: a process without requests,
    that only leads. `may_lead` False: one that does not watch the engines."""

    def __init__(
        self, url: str, prefix: str, *, process: str, clock: Clock, watch: Watch, may_lead: bool, asks: bool = True
    ) -> None:
        self._link = Link(url)
        self._prefix = prefix
        self._process = process
        self._clock = clock
        self._watch = watch
        self._may_lead = may_lead
        self._asks = asks

    def pool(self, name: str, initial: PoolState) -> SharedPool:
        return SharedPool(
            name,
            self._process,
            link=self._link,
            prefix=self._prefix,
            initial=initial,
            clock=self._clock,
            watch=self._watch,
            may_lead=self._may_lead,
            asks=self._asks,
        )

    def quota(self, replicas: Callable[[], int]) -> SharedQuota:
        """`replicas`: how many there are, as last heard."""
        return SharedQuota(
            self._process,
            link=self._link,
            prefix=self._prefix,
            clock=self._clock,
            watch=self._watch,
            replicas=replicas,
        )

    async def close(self) -> None:
        """After the pools have ended."""
        await self._link.close()
