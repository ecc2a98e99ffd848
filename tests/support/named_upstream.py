"""An engine's place behind Envoy: answers with event streams that last as long as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

_CHUNK_S = 0.01


class Upstream:
    """Requests are told apart by their `x-name` header. `bodies`: as they came, compressed or not."""

    def __init__(self) -> None:
        self.port = 0
        self.running: set[str] = set()
        self.most_running = 0
        self.arrived: dict[str, web.Request] = {}
        self.bodies: dict[str, bytes] = {}
        self.reset: set[str] = set()
        self._finish: dict[str, asyncio.Event] = {}
        self._silent: dict[str, asyncio.Event] = {}

    def finish(self, name: str) -> None:
        """Lets the response end."""
        self._event(self._finish, name).set()

    def hold_headers(self, name: str) -> Callable[[], None]:
        """No response headers before the returned function is called."""
        event = self._event(self._silent, name)
        return event.set

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.headers.get("x-name", "")
        self.bodies[name] = await request.read()
        self.arrived[name] = request
        self.running.add(name)
        self.most_running = max(self.most_running, len(self.running))
        try:
            return await self._stream(request, name)
        except ConnectionError:
            self.reset.add(name)
            return web.Response()
        finally:
            self.running.discard(name)

    async def _stream(self, request: web.Request, name: str) -> web.StreamResponse:
        if name in self._silent:
            await self._silent[name].wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        finish = self._event(self._finish, name)
        while not finish.is_set() and request.query.get("short") is None:
            await response.write(b"data: x\n\n")
            await asyncio.sleep(_CHUNK_S)
        await response.write_eof()
        return response

    def _event(self, table: dict[str, asyncio.Event], name: str) -> asyncio.Event:
        return table.setdefault(name, asyncio.Event())


@asynccontextmanager
async def run_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", upstream.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, auto_decompress=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.port = runner.addresses[0][1]
    try:
        yield upstream
    finally:
        await runner.cleanup()
