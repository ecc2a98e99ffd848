"""Replicas of the service behind one Envoy, over one store: real processes, an upstream that counts who is open."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from extproc.sim.stack import Stack, StackOptions
from tests.support import valkey
from tests.support.counting_engine import CountingEngine, counting_engine
from tests.support.gateway import Gateway, gateway_of

LIMIT = 4
CLIENTS = 60
POLICY = """
queues:
  - {{priority: P0, name: zero, maxQueueSize: 200, timeout: 200s}}
  - {{priority: P1, name: one, maxQueueSize: 500, timeout: 200s}}
  - {{priority: P2, name: two, maxQueueSize: 500, timeout: 200s}}
pools: [{{name: main, engines: {{static: []}}, controllers: [fixed], fixed: {{limit: {{requests: {limit}}}}}}}]
trust: {{headers: [x-priority]}}
"""


@asynccontextmanager
async def replicas(folder: Path, count: int, *, stream_s: float) -> AsyncIterator[tuple[CountingEngine, Gateway]]:
    with valkey.running(folder, port=valkey.free_port()) as server:
        async with (
            counting_engine(stream_s) as engine,
            Stack(
                StackOptions(
                    policy=POLICY.format(limit=LIMIT),
                    engine_addresses=(engine.address,),
                    replicas=count,
                    serve_args=("--redis-url", server.url, "--redis-prefix", "test"),
                )
            ) as stack,
            gateway_of(stack) as gateway,
        ):
            await until_all(
                gateway, lambda pool: pool["share"]["replicas"] == count and pool["limit"]["slots"] == LIMIT
            )
            yield engine, gateway


async def pools(gateway: Gateway) -> list[Any]:
    """The pool as each replica that answers shows it."""
    found = []
    for url in gateway.stack.admin_urls.values():
        try:
            async with gateway.http.get(f"{url}/state") as response:
                found += (await response.json())["pools"]
        except aiohttp.ClientError:
            continue
    return found


async def until_all(gateway: Gateway, holds: Any, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not all(map(holds, await pools(gateway))):  # noqa: ASYNC110 - other processes have no event to await
            await asyncio.sleep(0.02)


async def until_envoy_misses_one(gateway: Gateway) -> None:
    """Before, it lets requests by that it meant for the dead one."""
    found = False
    async with asyncio.timeout(10):
        while not found:
            async with gateway.http.get(f"{gateway.stack.envoy_admin_url}/clusters?format=json") as response:
                clusters = (await response.json(content_type=None))["cluster_statuses"]
            hosts = [host for cluster in clusters for host in cluster.get("host_statuses", [])]
            found = any(host["health_status"].get("failed_active_health_check") for host in hosts)
            await asyncio.sleep(0.02)


def idle(pool: Any) -> bool:
    classes = pool["priorities"].values()
    return bool(pool["held"]["slots"] == 0 and sum(one["waiting"] + one["in_use"]["slots"] for one in classes) == 0)


async def test_three_replicas_keep_one_limit_and_everything_returns_to_zero(tmp_path: Path) -> None:
    async with replicas(tmp_path, 3, stream_s=0.2) as (engine, gateway):
        replies = await asyncio.gather(*(gateway.post() for _ in range(CLIENTS)))
        states = await pools(gateway)
        await until_all(gateway, idle)
    assert [reply.status for reply in replies] == [200] * CLIENTS
    assert engine.most_open == LIMIT
    admitted = [state["priorities"]["P1"]["requests"].get("admitted", 0) for state in states]
    assert sum(admitted) == CLIENTS
    assert sum(count > 0 for count in admitted) > 1, "Envoy spreads them"
    assert [state["share"]["leading"] for state in states].count(True) == 1


async def test_the_leaders_death_and_a_lower_limit_keep_the_limit(tmp_path: Path) -> None:
    async with replicas(tmp_path, 2, stream_s=0.3) as (engine, gateway):
        stack = gateway.stack
        states = dict(zip(stack.replicas, await pools(gateway), strict=True))
        leader = next(name for name, pool in states.items() if pool["share"]["leading"])
        stack.children[leader].send_signal(signal.SIGKILL)
        await until_all(gateway, lambda pool: pool["share"]["leading"], within_s=2)
        await until_envoy_misses_one(gateway)
        stack.write_policy(POLICY.format(limit=2))
        await until_all(gateway, lambda pool: pool["limit"]["slots"] == 2)
        replies = await asyncio.gather(*(gateway.post() for _ in range(12)))
        await until_all(gateway, idle)
    assert [reply.status for reply in replies] == [200] * 12
    assert engine.most_open == 2
