"""A real HTTP server that serves an engine's recorded page, and can misbehave in the ways engines do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

from aiohttp import web

from extproc.model import End, Outcome, Priority
from extproc.ports import WireEvent

PAGE = (Path(__file__).parents[1] / "golden" / "samples" / "vllm-0.32.0-loaded.txt").read_text(encoding="utf-8")


class Manner(StrEnum):
    """How the server answers."""

    FILTERS = "filters"
    """As vLLM: `/metrics/` filters by `name[]`, `/metrics` does not."""
    IGNORES_FILTER = "ignores-filter"
    EMPTY_FILTERED = "empty-filtered"
    NO_SLASH = "no-slash"
    """404 for `/metrics/`."""
    REDIRECTS = "redirects"
    """404 for a filter, 307 from `/metrics` to `/metrics/full`."""
    REDIRECTS_AWAY = "redirects-away"
    LOOPS = "loops"
    SILENT = "silent"
    """Takes the request and says nothing until the manner changes."""
    NONSENSE = "nonsense"
    ERROR = "error"
    HUGE = "huge"


class MetricsServer:
    """`kv_usage` and `running` are what the page shows; the token counters grow with every answer."""

    def __init__(self) -> None:
        self.manner = Manner.FILTERS
        self.kv_usage = 0.5
        self.running = 4
        self.tokens = 0
        self.asked: list[tuple[float, str]] = []
        """When and what was asked: `filtered`, or the path."""
        self.in_flight = 0
        self.most_in_flight = 0
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()

    @property
    def engine(self) -> str:
        return f"127.0.0.1:{self.port}"

    def behave(self, manner: Manner) -> None:
        self.manner = manner
        self._changed.set()

    async def start(self, host: str = "127.0.0.1") -> None:
        """On the port it had before, if it was up before."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._changed.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        filtered = request.path == "/metrics/" and "name[]" in request.query
        self.asked.append((asyncio.get_running_loop().time(), "filtered" if filtered else request.path))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            while self.manner is Manner.SILENT:
                self._changed.clear()
                await self._changed.wait()
            return self._respond(request, filtered=filtered)
        finally:
            self.in_flight -= 1

    def _respond(self, request: web.Request, *, filtered: bool) -> web.Response:
        match self.manner:
            case Manner.NONSENSE:
                return web.Response(body=b"<html>\x00\xff busy</html>", content_type="text/html")
            case Manner.ERROR:
                raise web.HTTPServiceUnavailable
            case Manner.HUGE:
                return web.Response(text="vllm:filler 1\n" * 400_000)
            case Manner.REDIRECTS_AWAY:
                raise web.HTTPTemporaryRedirect("http://192.0.2.1:9/metrics")
            case Manner.LOOPS:
                raise web.HTTPTemporaryRedirect(request.path_qs)
            case Manner.REDIRECTS if request.path == "/metrics":
                raise web.HTTPTemporaryRedirect("/metrics/full")
            case Manner.NO_SLASH | Manner.REDIRECTS if filtered:
                raise web.HTTPNotFound
            case Manner.EMPTY_FILTERED if filtered:
                return web.Response(text="")
            case _:
                names = request.query.getall("name[]") if filtered and self.manner is Manner.FILTERS else None
                return web.Response(text=self.page(names))

    def page(self, names: list[str] | None = None) -> str:
        self.tokens += 100
        text = re.sub(r"(?m)^(vllm:kv_cache_usage_perc\{.*\}) .*$", rf"\1 {self.kv_usage}", PAGE)
        text = re.sub(r"(?m)^(vllm:num_requests_running\{.*\}) .*$", rf"\1 {self.running}", text)
        text = re.sub(r"(?m)^(vllm:num_requests_waiting_by_reason\{.*\}) .*$", r"\1 0", text)
        text = re.sub(r"(?m)^(vllm:generation_tokens_total\{.*\}) .*$", rf"\1 {self.tokens}", text)
        if names is None:
            return text
        wanted = tuple(f"{name}{{" for name in names)
        return "".join(line for line in text.splitlines(keepends=True) if line.startswith(wanted))


@asynccontextmanager
async def metrics_server(manner: Manner = Manner.FILTERS, *, host: str = "127.0.0.1") -> AsyncIterator[MetricsServer]:
    server = MetricsServer()
    server.manner = manner
    await server.start(host)
    try:
        yield server
    finally:
        await server.stop()


class ScrapeLog:
    """An `Observer` that keeps what was scraped and lets a test wait for it."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None: ...

    def retried(self, priority: Priority, pool: str) -> None: ...

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None: ...

    def wire(self, event: WireEvent) -> None: ...

    def scraped(self, engine: str, result: str, *, took_s: float) -> None:
        assert took_s >= 0
        self.results.append((engine, result))
        self._more.set()

    def of(self, engine: str) -> list[str]:
        return [result for name, result in self.results if name == engine]

    async def until(self, condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
        """Returns as soon as the condition holds after a scrape. Raises `TimeoutError`."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._more.clear()
                await self._more.wait()
