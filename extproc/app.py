"""The composition root of `extproc serve`: builds everything once, runs it in one TaskGroup, stops in reverse order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import msgspec
import structlog

from extproc.admin.http import AdminServer
from extproc.admin.lag import LoopLag
from extproc.admin.metrics import Metrics
from extproc.admission import Admission
from extproc.clock import Clock, LoopClock, wall_clock
from extproc.config import EnginesPolicy, Policy, PoolPolicy, load_policy
from extproc.config.plain import masked, to_plain
from extproc.control import ControlLoop
from extproc.controllers.compose import PoolController
from extproc.dispatcher import Dispatcher
from extproc.engines.scraper import EngineStatus, Scraper
from extproc.model import UNLIMITED, PoolState, Priority
from extproc.snapshots import (
    EngineSnapshot,
    PolicySnapshot,
    PoolSnapshot,
    QueueSnapshot,
    ServiceSnapshot,
    WireSnapshot,
)
from extproc.state.local import LocalLedger
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.server import WireServer

_log = structlog.get_logger(__name__)

ENVOY_MARGIN_S = 1.0
"""No wait comes closer to Envoy's maximum than this: a late answer would let the request pass."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `extproc serve`. `grace_s`: how long running requests are followed after SIGTERM."""

    policy_file: str
    listen: str = "127.0.0.1:50051"
    admin_listen: str = "127.0.0.1:8080"
    scrape: bool = True
    grace_s: float = 25.0


class Pool:
    """One pool's parts and how they hang together."""

    def __init__(
        self, pool: PoolPolicy, policy: Policy, *, scrape: bool, clock: Clock, metrics: Metrics, random: Random
    ) -> None:
        self._clock = clock
        self._policy = policy
        self.name = pool.name
        self.ledger = LocalLedger(PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED)), clock)
        self.dispatcher = Dispatcher(
            pool,
            policy.queues,
            retry=policy.retry_after,
            longest_wait_s=policy.envoy.max_message_timeout_s - ENVOY_MARGIN_S,
            ledger=self.ledger,
            clock=clock,
            observer=metrics,
            random=random,
            new_future=asyncio.get_running_loop().create_future,
        )
        stale_after_s = policy.failure.stale_after_s
        engines = pool.engines if scrape else EnginesPolicy()
        self.scraper = Scraper(engines, stale_after_s=stale_after_s, observer=metrics, clock=clock)
        self.control = ControlLoop(
            PoolController(pool, queues=policy.queues, failure=policy.failure),
            self.ledger,
            fleet=self.scraper,
            demand=self.dispatcher,
            clock=clock,
            initial=self.ledger.state,
        )
        self.control.step()  # the first request already meets a limit

    def snapshot(self) -> PoolSnapshot:
        now = self._clock.now()
        dispatcher = self.dispatcher
        demand = dispatcher.demand(now)
        p0, p1, p2 = (self._queue(priority, now) for priority in Priority)
        reporting = {s.engine for s in self.scraper.fleet().reporting(now, self._policy.failure.stale_after_s)}
        return PoolSnapshot(
            name=self.name,
            state=dispatcher.state,
            queues=(p0, p1, p2),
            in_use=dispatcher.in_use,
            held=sum(dispatcher.in_use, self.ledger.ghosts),
            ghosts=self.ledger.ghosts,
            drain_per_s=demand.drain_per_s,
            engines=tuple(_engine(status, status.engine in reporting) for status in self.scraper.statuses()),
        )

    def _queue(self, priority: Priority, now: float) -> QueueSnapshot:
        band = self.dispatcher.bands[priority]
        oldest = band.oldest()
        return QueueSnapshot(
            name=band.policy.name,
            max_size=band.policy.max_queue_size,
            waiting=band.count,
            waiting_load=band.load,
            oldest_wait_s=now - oldest.arrived if oldest else None,
        )


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


class Service:
    """Implements `snapshots.StateSource`. `run` until `stop` is set."""

    def __init__(self, options: ServeOptions, policy: Policy, clock: Clock) -> None:
        self._options = options
        self._policy = policy
        self._clock = clock
        self._started_at = clock.now()
        self._draining = False
        self._metrics = Metrics(pool.name for pool in policy.pools)
        random = Random()
        self._pools = tuple(
            Pool(pool, policy, scrape=options.scrape, clock=clock, metrics=self._metrics, random=random)
            for pool in policy.pools
        )
        dispatchers = {pool.name: pool.dispatcher for pool in self._pools}
        self._admission = Admission(policy, dispatchers, self._metrics, environment=os.environ)
        self._policy_snapshot = PolicySnapshot(options.policy_file, _fingerprint(policy), wall_clock())
        self._lag = LoopLag(clock)
        service = ExtProcService(
            lambda: self._admission, observer=self._metrics, clock=clock, envoy=lambda: policy.envoy
        )
        self._wire = WireServer(service, listen=options.listen, max_body_bytes=policy.body.max_bytes)
        self._admin = AdminServer(
            listen=options.admin_listen,
            source=self,
            metrics=self._metrics,
            policy_view=lambda: masked(to_plain(policy)),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `ExtprocError` when an address cannot be listened on; a bug in any loop ends it all, loudly."""
        self._lag.start()
        try:
            await self._admin.start()
            await self._wire.start()
            async with asyncio.TaskGroup() as tasks:
                loops = [tasks.create_task(pool.control.run(), name=f"control {pool.name}") for pool in self._pools]
                loops += [tasks.create_task(pool.scraper.run(), name=f"scrape {pool.name}") for pool in self._pools]
                _log.info("serving", listen=self._wire.address, admin=self._admin.address)
                await stop.wait()
                await self._drain()
                for task in loops:
                    task.cancel()
        finally:
            await self._wire.stop(0)
            await self._admin.stop()
            self._lag.stop()

    async def _drain(self) -> None:
        """Envoy is told to go elsewhere, who waits is answered, who runs is followed to the end."""
        self._draining = True
        _log.info("draining", streams=self._wire.streams, grace_s=self._options.grace_s)
        await self._wire.drain()
        self._admission.drain()
        await self._wire.stop(self._options.grace_s)
        _log.info("stopped")

    def snapshot(self) -> ServiceSnapshot:
        return ServiceSnapshot(
            at=self._clock.now(),
            started_at=self._started_at,
            policy=self._policy_snapshot,
            wire=WireSnapshot(
                address=self._wire.address,
                serving=self._wire.serving,
                streams=self._wire.streams,
                warnings=self._wire.warnings,
            ),
            pools=tuple(pool.snapshot() for pool in self._pools),
            draining=self._draining,
            loop_lag_s=self._lag.worst_s(),
        )


async def serve_until_signalled(options: ServeOptions) -> None:
    """Reads the policy, serves, and stops on SIGTERM or SIGINT; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    policy = load_policy(options.policy_file)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _stopper(stop, loop))
    await Service(options, policy, LoopClock(loop)).run(stop)


def _stopper(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    def on_signal() -> None:
        if stop.is_set():
            for name in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(name)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    return on_signal


def _fingerprint(policy: Policy) -> str:
    """Short, the same for the same policy, whatever its file looks like."""
    return hashlib.sha256(msgspec.json.encode(to_plain(policy), order="sorted")).hexdigest()[:12]
