"""A small HTTP upstream that is not an engine: it tells the headers it got, or holds a request until told to finish."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Upstream:
    """`/hold` stays open until `finish`; every other path answers with the request's headers as JSON, names lowered."""

    full_at: int = 1
    """`opened` is set when this many requests are held at once."""
    port: int = 0
    seen: int = 0
    open: int = 0
    most_open: int = 0
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        self.seen += 1
        if request.path != "/hold":
            return web.json_response({name.lower(): value for name, value in request.headers.items()})
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        if self.open == self.full_at:
            self.opened.set()
        await self.finish.wait()
        self.open -= 1
        return web.Response(text="done")


@contextlib.asynccontextmanager
async def running_upstream(*, full_at: int = 1) -> AsyncIterator[Upstream]:
    upstream = Upstream(full_at)
    app = web.Application(client_max_size=8 << 20)
    app.router.add_route("*", "/{rest:.*}", upstream.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.port = runner.addresses[0][1]
    try:
        yield upstream
    finally:
        await runner.cleanup()
