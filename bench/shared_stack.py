"""What `bench.replicas` runs on: a store, replicas of the service before one Envoy, and what they say of themselves."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from bench.shared_engine import SharedEngine, shared_engine
from bench.shared_inversion import Unheard, Way, measured_ways
from bench.shared_load import Clients
from extproc.files import envoy_yaml
from extproc.sim.stack import REPLICA_VARIABLE, Stack, StackOptions
from tests.support import valkey
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

REPLICAS = 4
POLICY = """
queues:
  - {{priority: P0, name: zero, maxQueueSize: 2000, timeout: 200s}}
  - {{priority: P1, name: one, maxQueueSize: 2000, timeout: 200s}}
  - {{priority: P2, name: two, maxQueueSize: 2000, timeout: 200s, dropPolicy: tail}}
pools:
  - name: main
    engines: {{static: []}}
    controllers: [fixed]
    fixed: {{limit: {{requests: {limit}}}}}
    upstreamAuth: env:%s
trust: {{headers: [x-priority]}}
"""
POLICY %= REPLICA_VARIABLE
"""The engine sees which replica admitted a request."""


class ReplicaStack(Stack):
    """`proxies`: each replica's way to the store; None: straight."""

    def __init__(self, options: StackOptions, proxies: list[TcpProxy]) -> None:
        super().__init__(options)
        self._proxies = proxies

    def arguments_of(self, replica: str) -> tuple[str, ...]:
        if not self._proxies:
            return self.options.serve_args
        port = self._proxies[self.replicas.index(replica)].port
        return ("--redis-url", f"redis://127.0.0.1:{port}")


class Store:
    """The store's process; may be stopped, killed and started anew on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server = valkey.start(folder, port=valkey.free_port())

    @property
    def port(self) -> int:
        return self.server.port

    def client(self) -> Redis:
        return self.server.client()

    def restart_empty(self) -> None:
        valkey.stop(self.server)
        self.server = valkey.start(self._folder, port=self.server.port)

    def calls(self) -> int:
        """Scripts run so far."""
        with self.client() as client:
            stats = client.info("commandstats")
        return sum(int(stats.get(name, {}).get("calls", 0)) for name in ("cmdstat_evalsha", "cmdstat_eval"))

    def stop(self) -> None:
        valkey.stop(self.server)


class World:
    """Everything that a phase may touch."""

    def __init__(
        self, stack: ReplicaStack, store: Store, *, engine: SharedEngine, clients: Clients, proxies: list[TcpProxy]
    ) -> None:
        self.stack = stack
        self.store = store
        self.engine = engine
        self.clients = clients
        self.proxies = proxies
        self.unheard: list[Unheard] = []
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2))

    async def close(self) -> None:
        await self._http.close()

    @property
    def ways(self) -> list[Way]:
        """All that were measured so far."""
        return measured_ways(self.clients.unlimited, self.engine.came, self.unheard)

    @contextmanager
    def nobody_hears(self, replica: str, *, still: bool) -> Iterator[None]:
        """While it stands still, or else has lost its line to the store."""
        now = asyncio.get_running_loop().time
        since = now()
        try:
            yield
        finally:
            self.unheard.append(Unheard(replica, since, now(), still))

    async def all_lines_to(self, port: int) -> None:
        """All are cut before the first is open again: nobody stays with the old store."""
        for proxy in self.proxies:
            await proxy.cut()
        for proxy in self.proxies:
            proxy.target_port = port
            await proxy.start()

    async def pools(self) -> dict[str, Any]:
        """The pool as each replica that answers shows it."""
        found = {}
        for name, url in self.stack.admin_urls.items():
            try:
                async with self._http.get(f"{url}/state") as response:
                    found[name] = (await response.json())["pools"][0]
            except (aiohttp.ClientError, TimeoutError):
                continue
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool], within_s: float = 20.0) -> float:
        """How long it took. TimeoutError where it never holds."""
        start = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while not holds(await self.pools()):  # noqa: ASYNC110 - other processes have no event to await
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - start

    async def whole(self, limit: int) -> None:
        """All replicas are there, hear each other, and have this limit."""

        def holds(pools: dict[str, Any]) -> bool:
            return len(pools) == REPLICAS and all(
                pool["share"]["replicas"] == REPLICAS
                and not pool["share"]["cut_off"]
                and pool["limit"]["slots"] == limit
                for pool in pools.values()
            )

        await self.until(holds)

    async def set_limit(self, limit: int) -> None:
        """The engine is told of a rise before it is made, and of a fall once the first replica has it."""
        now = asyncio.get_running_loop().time
        rises = limit > self.engine.limits[-1][1]
        if rises:
            self.engine.limits.append((now(), limit))
        self.stack.write_policy(POLICY.format(limit=limit))
        await self.until(lambda pools: any(pool["limit"]["slots"] == limit for pool in pools.values()))
        if not rises:
            self.engine.limits.append((now(), limit))

    async def leader(self) -> str:
        await self.until(lambda pools: any(pool["share"]["leading"] for pool in pools.values()))
        return next(name for name, pool in (await self.pools()).items() if pool["share"]["leading"])

    async def ask_times(self) -> dict[str, dict[float, float]]:
        """Per replica: how many asks took at most so many seconds, since its start."""
        found = {}
        for name, url in self.stack.admin_urls.items():
            try:
                async with self._http.get(f"{url}/metrics") as response:
                    text = await response.text()
            except (aiohttp.ClientError, TimeoutError):
                continue
            buckets = {}
            for family in text_string_to_metric_families(text):
                if family.name == "extproc_state_ask_seconds":
                    for sample in family.samples:
                        if sample.name.endswith("_bucket"):
                            buckets[float(sample.labels["le"])] = sample.value
            found[name] = buckets
        return found


def _without_backstop() -> str:
    """The circuit breaker on the engines would hide what we let through."""
    text, changed = re.subn(r"max_requests: \d+", "max_requests: 100000", envoy_yaml())
    if not changed:
        raise AssertionError("the Envoy file has no backstop")
    return text


@asynccontextmanager
async def world(*, limit: int, hold_s: float, proxied: bool) -> AsyncIterator[World]:
    async with AsyncExitStack() as blocks:
        store = Store(Path(blocks.enter_context(tempfile.TemporaryDirectory(prefix="extproc-replicas-"))))
        blocks.callback(store.stop)
        proxies = [await blocks.enter_async_context(tcp_proxy(store.port)) for _ in range(REPLICAS if proxied else 0)]
        engine = await blocks.enter_async_context(shared_engine(hold_s))
        options = StackOptions(
            policy=POLICY.format(limit=limit),
            engine_addresses=(engine.address,),
            replicas=REPLICAS,
            envoy_yaml=_without_backstop(),
            serve_args=("--redis-url", store.server.url, "--log-level", "info"),
        )
        stack = await blocks.enter_async_context(ReplicaStack(options, proxies))
        clients = Clients(stack.gateway_url)
        made = World(stack, store, engine=engine, clients=clients, proxies=proxies)
        try:
            engine.limits.append((asyncio.get_running_loop().time(), limit))
            await made.whole(limit)
            yield made
        finally:
            await clients.close()
            await made.close()
