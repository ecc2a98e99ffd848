"""Client, Envoy, our wire over the real spine, upstream; with a TCP relay in front of us that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from extproc.clock import LoopClock
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.server import WireServer
from tests.support.eventually import eventually
from tests.support.minimal_envoy import EnvoyOptions, run_envoy
from tests.support.named_upstream import Upstream, run_upstream
from tests.support.observing import Remembering
from tests.support.spine import Spine, tail_queues


class Relay:
    """Passes bytes on to an address, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection at once, as when a node dies."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@dataclass(slots=True)
class Stack:
    spine: Spine
    observer: Remembering
    service: ExtProcService
    server: WireServer
    upstream: Upstream
    relay: Relay | None
    url: str
    directory: Path
    session: aiohttp.ClientSession
    calls: list[asyncio.Task[Any]] = field(default_factory=list)

    def call(
        self, name: str, *, path: str = "/v1/chat/completions", **request: Any
    ) -> asyncio.Task[tuple[int, bytes, Any]]:
        """A request as a task: status, body, headers. Cancelling it is the client's leaving."""
        task = asyncio.ensure_future(self._call(name, path, **request))
        self.calls.append(task)
        return task

    async def _call(self, name: str, path: str, *, method: str = "POST", **request: Any) -> tuple[int, bytes, Any]:
        headers = {"x-name": name, **request.pop("headers", {})}
        async with self.session.request(method, self.url + path, headers=headers, **request) as response:
            return response.status, await response.read(), response.headers

    async def access_log(self, lines: int) -> list[str]:
        """The first so many lines, once Envoy has written them."""
        log = self.directory / "access.log"
        await eventually(lambda: len(log.read_text().splitlines()) >= lines)
        return log.read_text().splitlines()


@asynccontextmanager
async def wire_stack(
    directory: Path,
    *,
    limit: int = 1,
    queue_size: int = 50,
    listen: str = "127.0.0.1:0",
    relayed: bool = False,
    **envoy: Any,
) -> AsyncIterator[Stack]:
    """Everything on free ports. `relayed`: Envoy reaches us through a `Relay`."""
    clock, observer = LoopClock(asyncio.get_running_loop()), Remembering()
    spine = Spine(limit=limit, clock=clock, observer=observer, policy=tail_queues(queue_size))
    service = ExtProcService(lambda: spine.admission, observer=observer, clock=clock, envoy=lambda: spine.policy.envoy)
    server = WireServer(service, listen=listen, max_body_bytes=1 << 20)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        await server.start()
        stack.push_async_callback(server.stop, 0.0)
        address, relay = server.address, None
        if relayed:
            host, _, port = address.rpartition(":")
            relay = Relay(host, int(port))
            await relay.start()
            stack.push_async_callback(relay.stop)
            address = relay.address
        options = EnvoyOptions(extproc=address, upstream_port=upstream.port, **envoy)
        url = await stack.enter_async_context(run_envoy(options, directory))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        )
        running = Stack(spine, observer, service, server, upstream, relay, url, directory, session)
        stack.push_async_callback(_end_calls, running)
        yield running


async def _end_calls(stack: Stack) -> None:
    for call in stack.calls:
        call.cancel()
    await asyncio.gather(*stack.calls, return_exceptions=True)
