"""An upstream that counts: every POST is one SSE stream of a given length; who was open when is known to the millisecond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


class CountingEngine:
    """`starts` and `ends`: loop times of every stream; `resets`: streams the client cut."""

    def __init__(self, stream_s: float) -> None:
        self.stream_s = stream_s
        self.address = ""
        self.open = 0
        self.most_open = 0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.resets: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    async def stream(self, request: web.Request) -> web.StreamResponse:
        now = asyncio.get_running_loop().time
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(await request.read())
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.starts.append(now())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        finish_at = now() + self.stream_s
        try:
            await response.prepare(request)
            while now() < finish_at:
                await response.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
                await asyncio.sleep(min(0.02, max(0.0, finish_at - now())))
            await response.write(b"data: [DONE]\n\n")
            self.ends.append(now())
        except (ConnectionError, asyncio.CancelledError):
            self.resets.append(now())
            raise
        finally:
            self.open -= 1
        return response

    def gaps_s(self, limit: int) -> list[float]:
        """How long each freed place stood empty: the k-th end makes room for the (limit + k)-th start."""
        ends, starts = sorted(self.ends), sorted(self.starts)
        return [start - end for end, start in zip(ends, starts[limit:], strict=False)]


@asynccontextmanager
async def counting_engine(stream_s: float) -> AsyncIterator[CountingEngine]:
    """Listens on a port of its own, in this process."""
    engine = CountingEngine(stream_s)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{any:.*}", engine.stream)
    app.router.add_get("/{any:.*}", engine.stream)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        engine.address = f"{host}:{port}"
        yield engine
    finally:
        await runner.cleanup()
