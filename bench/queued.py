"""What a queued request takes of the service's memory: so many real ext_proc streams held by a real service."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from bench.child import child_process
from bench.messages import request_body, request_headers
from bench.probe import holds, rss_bytes, service_state
from bench.requests import chat_body
from bench.traced import MARK
from extproc.sim.processes import Child, StackError
from extproc.sim.stack import free_port
from extproc.wire.ext_proc import SERVICE

_WARM = 500
"""Queued before the first look: pools and arenas that one request needs as much as ten thousand."""
_AT_ONCE = 100
_BODY_BYTES = 2048
_PATIENCE_S = 60.0
_POLICY = """
queues:
  - {priority: P1, name: all, maxQueueSize: 100000, maxQueueBytes: 1GiB, timeout: 250s, dropPolicy: tail}
pools: [{name: main, engines: {static: []}, controllers: [fixed], fixed: {limit: {requests: 1}}}]
"""


@dataclass(frozen=True, slots=True)
class QueuedBytes:
    """Per queued request. `python`: what the service's Python heap holds, gRPC's Python objects included. `resident`: growth
    of the process; the difference is gRPC's C core, which takes it for every open stream of any server."""

    python: float
    resident: float


async def measure_queued_bytes(count: int) -> QueuedBytes:
    """Growth per request between `_WARM` and `count` queued ones, each with a 2 KB body. Raises `StackError` where the
    service does not queue them all, or keeps any once their clients have left."""
    return QueuedBytes(
        python=await _run(count, "bench.traced", _traced_bytes), resident=await _run(count, "extproc", _resident_bytes)
    )


async def _resident_bytes(child: Child) -> int:
    return rss_bytes(child.pid)


async def _traced_bytes(child: Child) -> int:
    def told() -> list[str]:
        return [line for line in child.log.read_text(encoding="utf-8").splitlines() if line.startswith(MARK)]

    before = len(told())
    child.send_signal(signal.SIGUSR1)
    while len(told()) == before:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)
    return int(told()[-1].split()[1])


async def _run(count: int, module: str, look: Callable[[Child], Awaitable[int]]) -> float:
    address, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="extproc-queued-") as name:
        policy = Path(name) / "policy.yaml"
        policy.write_text(_POLICY, encoding="utf-8")
        listen = ("--listen", address, "--admin-listen", admin)
        argv = (sys.executable, "-m", module, "serve", "--policy", str(policy), *listen)
        async with child_process("extproc", *argv) as child:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    return await _measure(child, look, count, address=address, admin_url=f"http://{admin}")
            except TimeoutError:
                late = f"{count} requests were not queued in {_PATIENCE_S:.0f} s:\n{child.last_words()}"
                raise StackError(late) from None


async def _measure(
    child: Child, look: Callable[[Child], Awaitable[int]], count: int, *, address: str, admin_url: str
) -> float:
    async with grpc.aio.insecure_channel(address) as channel, aiohttp.ClientSession() as http:
        await channel.channel_ready()
        calls = [await _hold(channel)]  # the one that runs
        calls += await _queue(channel, _WARM)
        before = await look(child)
        calls += await _queue(channel, count - _WARM)
        after = await look(child)
        await _until(http, admin_url, waiting=count)
        for call in calls:
            call.cancel()
        await _until(http, admin_url, waiting=0)
    return (after - before) / (count - _WARM)


async def _queue(channel: Any, count: int) -> list[Any]:
    calls: list[Any] = []
    while len(calls) < count:
        calls += await asyncio.gather(*(_hold(channel) for _ in range(min(_AT_ONCE, count - len(calls)))))
    return calls


async def _hold(channel: Any) -> Any:
    """A request up to the first word after its body: the verdict, or that it has to wait. Its stream stays open."""
    call = channel.stream_stream(f"/{SERVICE}/Process")()
    await call.write(request_headers(_BODY_BYTES))
    await call.read()
    await call.write(request_body(chat_body(_BODY_BYTES)))
    await call.read()
    return call


async def _until(http: aiohttp.ClientSession, admin_url: str, *, waiting: int) -> None:
    while holds(await service_state(http, admin_url))["waiting"] != waiting:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)
