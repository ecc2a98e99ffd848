"""The composition root of `extproc serve`: builds everything once, runs it in one TaskGroup, stops in reverse order."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from extproc.admin.http import AdminServer
from extproc.admin.lag import LoopLag
from extproc.admin.metrics import Metrics
from extproc.clock import Clock, LoopClock, wall_clock
from extproc.config import Policy, load_policy, masked, to_plain
from extproc.pools import Pools
from extproc.reload import Reloader
from extproc.snapshots import ServiceSnapshot, WireSnapshot
from extproc.state.redis import RedisState
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.server import WireServer

_log = structlog.get_logger(__name__)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's malloc.h."""

MOST_BODY_BYTES = (1 << 30) - 1
"""The most that `body.maxBytes` may say, in any policy to come; grpc's own bound is set once, and twice this fits it."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `extproc serve`. `grace_s`: how long running requests are followed after SIGTERM. `listen` None: no
    requests come here, it only watches the engines for the replicas (`extproc scrape`). `redis_url` None: one replica."""

    policy_file: str
    listen: str | None = "127.0.0.1:50051"
    admin_listen: str = "127.0.0.1:8080"
    scrape: bool = True
    grace_s: float = 25.0
    redis_url: str | None = None
    redis_prefix: str = "extproc"


class NoWire:
    """In place of the wire, where no requests come."""

    address, serving, streams, warnings = "", True, 0, ()

    async def start(self) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class Service:
    """Implements `snapshots.StateSource`. `run` until `stop` is set."""

    def __init__(self, options: ServeOptions, policy: Policy, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._started_at = clock.now()
        self._draining = False
        self._metrics = Metrics(pool.name for pool in policy.pools)
        self._store = self._open_store(options)
        self._pools = Pools(
            policy,
            store=self._store,
            scrape=options.scrape,
            clock=clock,
            observer=self._metrics,
            wall=wall_clock,
            environment=os.environ,
        )
        self._reloader = Reloader(options.policy_file, policy, publish=self._use)
        self._lag = LoopLag(clock)
        service = ExtProcService(
            lambda: self._pools.admission,
            observer=self._metrics,
            clock=clock,
            envoy=lambda: self._pools.policy.envoy,
        )
        self._wire: WireServer | NoWire = (
            WireServer(service, listen=options.listen, max_body_bytes=MOST_BODY_BYTES) if options.listen else NoWire()
        )
        self._admin = AdminServer(
            listen=options.admin_listen,
            source=self,
            metrics=self._metrics,
            policy_view=lambda: masked(to_plain(self._pools.policy)),
        )

    def _open_store(self, options: ServeOptions) -> RedisState | None:
        """The name of this process is new at each start: what a former one held is not ours."""
        if options.redis_url is None:
            return None
        return RedisState(
            options.redis_url,
            options.redis_prefix,
            process=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            clock=self._clock,
            watch=self._metrics,
            may_lead=options.scrape,
            asks=options.listen is not None,
        )

    def reload(self) -> None:
        """Reads the policy file now, whether it seems to have changed or not."""
        self._reloader.read_now()

    def _use(self, policy: Policy) -> None:
        self._pools.use(policy)
        self._metrics.declare_pools(pool.name for pool in policy.pools)

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `ExtprocError` when an address cannot be listened on; a bug in any loop ends it all, loudly."""
        self._lag.start()
        try:
            await self._admin.start()
            await self._wire.start()
            async with asyncio.TaskGroup() as tasks:
                pools = tasks.create_task(self._pools.run(), name="pools")
                reloads = tasks.create_task(self._reloader.run(), name="reload")
                _log.info("serving", listen=self._wire.address, admin=self._admin.address)
                await stop.wait()
                reloads.cancel()
                await self._drain()
                pools.cancel()
        finally:
            await self._wire.stop(0)
            await self._admin.stop()
            if self._store is not None:
                await self._store.close()
            self._lag.stop()

    async def _drain(self) -> None:
        """Envoy is told to go elsewhere, who waits is answered, who runs is followed to the end."""
        self._draining = True
        _log.info("draining", streams=self._wire.streams, grace_s=self._options.grace_s)
        await self._wire.drain()
        self._pools.drain()
        await self._wire.stop(self._options.grace_s)
        _log.info("stopped")

    def snapshot(self) -> ServiceSnapshot:
        return ServiceSnapshot(
            at=self._clock.now(),
            started_at=self._started_at,
            policy=self._reloader.snapshot,
            wire=WireSnapshot(
                address=self._wire.address,
                serving=self._wire.serving,
                streams=self._wire.streams,
                warnings=self._wire.warnings,
            ),
            pools=self._pools.snapshots(),
            tenants=self._pools.tenant_snapshots(),
            draining=self._draining,
            loop_lag_s=self._lag.worst_s(),
        )


def _keep_memory() -> None:
    """Of memory that each request takes and gives back, neither Python nor the C library is to make much.

    A hundred thousand objects live as long as we: each full collection stopped the loop for 60 ms, so they are set apart.
    Requests leave hardly any cycles: looked for every 700 objects, as by default, they cost 3 % of all requests. And glibc
    fetches bodies of 128 KB from the kernel page by page and gives them back at once: 5 % of such requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # glibc
        for parameter, size_bytes in (
            (_M_MMAP_THRESHOLD, 4 << 20),
            (_M_TRIM_THRESHOLD, 32 << 20),
            (_M_TOP_PAD, 1 << 20),
        ):
            mallopt(parameter, size_bytes)


async def serve_until_signalled(options: ServeOptions) -> None:
    """Reads the policy, serves, and stops on SIGTERM or SIGINT; a second signal ends the process at once.

    SIGHUP reads the policy again.
    """
    loop = asyncio.get_running_loop()
    policy = load_policy(options.policy_file)
    stop = asyncio.Event()
    service = Service(options, policy, LoopClock(loop))
    _keep_memory()
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _stopper(stop, loop))
    await service.run(stop)


def _stopper(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    def on_signal() -> None:
        if stop.is_set():
            for name in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(name)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    return on_signal
