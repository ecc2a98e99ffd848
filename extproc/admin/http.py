"""The admin HTTP server: health, readiness, metrics, state, policy and the live page. Read-only, no authentication.

It runs on the service's own event loop, so each answer is built in one go and stays small; nothing here waits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from importlib import resources

import msgspec
import yaml
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import choose_encoder

from extproc.admin.gauges import SnapshotCollector
from extproc.admin.metrics import Metrics
from extproc.admin.source import SafeSource
from extproc.admin.state import Json, readiness, state_document, unreadable
from extproc.clock import wall_clock
from extproc.errors import CannotListen
from extproc.listen import split_address
from extproc.snapshots import StateSource

PolicyView = Callable[[], Mapping[str, object]]
"""The policy in force as plain data (YAML keys, no secrets)."""

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'"
}


def _why(error: OSError) -> str:
    """The system's own words: asyncio wraps them in a sentence that repeats the address. Names that do not resolve have
    negative numbers and words of their own.
    """
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def _json(document: dict[str, Json], status: int = 200) -> web.Response:
    body = msgspec.json.encode(document)
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")


@web.middleware
async def _common_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:  # 404 and 405 arrive as exceptions
        error.headers.update(_HEADERS)
        raise
    response.headers.update(_HEADERS)
    return response


def _one_at_a_time() -> Middleware:
    """One page per turn of the event loop: a thousand that came together would hold up all decisions for their sum."""
    turn = asyncio.Lock()

    @web.middleware
    async def wait(request: web.Request, handler: Handler) -> web.StreamResponse:
        async with turn:
            await asyncio.sleep(0)  # no handler waits for anything, so that nobody would meet a turn that is taken
            return await handler(request)

    return wait


class AdminServer:
    """Serves from `start()` to `stop()`. Registers the gauges of `source` with `metrics` while it runs."""

    def __init__(
        self,
        *,
        listen: str,
        source: StateSource,
        metrics: Metrics,
        policy_view: PolicyView,
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self._listen = listen
        self._source = SafeSource(source)
        self._metrics = metrics
        self._gauges = SnapshotCollector(self._source)
        self._policy_view = policy_view
        self._wall = wall
        self._page = resources.files("extproc.admin").joinpath("page/index.html").read_bytes()
        self._runner: web.AppRunner | None = None
        self.address = ""
        """`host:port` listened on, with the real port where 0 was asked for; empty while stopped."""

    async def start(self) -> str:
        """Returns `address`. Raises CannotListen when the address is malformed, taken or not ours."""
        host, port = split_address("--admin-listen", self._listen)
        runner = web.AppRunner(self._application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host or None, port).start()
        except OSError as error:
            await runner.cleanup()
            raise CannotListen(f"--admin-listen: cannot listen on {self._listen}: {_why(error)}") from error
        self._runner = runner
        self._metrics.attach(self._gauges)
        bound = runner.addresses[0]
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        return self.address

    async def stop(self) -> None:
        """Closes the port and what is open on it; a second call changes nothing."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.address = ""
            self._metrics.detach(self._gauges)
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[_common_headers, _one_at_a_time()], client_max_size=1024)
        application.add_routes(
            [
                web.get("/", self._live_page),
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics_text),
                web.get("/state", self._state),
                web.get("/policy", self._policy),
            ]
        )
        return application

    async def _live_page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=_PAGE_HEADERS)

    async def _health(self, _: web.Request) -> web.Response:
        """Alive means that the event loop answers. Nothing else: a restart would not mend the rest."""
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        snapshot = self._source.take()
        if snapshot is None:
            return _json(unreadable(self._source.last_error), 503)
        verdict = readiness(snapshot)
        return _json(verdict.document, 200 if verdict.ready else 503)

    async def _state(self, _: web.Request) -> web.Response:
        snapshot = self._source.take()
        if snapshot is None:
            return _json(unreadable(self._source.last_error), 503)
        requests, retries = self._metrics.requests(), self._metrics.retries()
        return _json(state_document(snapshot, wall_s=self._wall(), requests=requests, retries=retries))

    async def _metrics_text(self, request: web.Request) -> web.Response:
        """Text or OpenMetrics by `Accept`; `?name[]=` (repeatable) narrows the answer to those samples."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        registry = self._metrics.registry
        wanted = request.query.getall("name[]", [])
        body = encode(registry.restricted_registry(wanted) if wanted else registry)
        return web.Response(body=body, headers={"content-type": content_type})

    async def _policy(self, _: web.Request) -> web.Response:
        text = yaml.safe_dump(dict(self._policy_view()), sort_keys=False, allow_unicode=True)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")
