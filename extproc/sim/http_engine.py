"""The fake engine over HTTP: OpenAI's and Anthropic's APIs as vLLM has them, and its `/metrics`, in front of the engine
model, in real time.

Behind `extproc engine`, in the demo and in tests. `/engine/*` is what no real engine has: forced gauges and faults
(`POST /engine/control`), counters (`GET /engine/stats`) and a fresh start (`POST /engine/reset`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from extproc.clock import LoopClock, wall_clock
from extproc.errors import CannotListen, ExtprocError
from extproc.sim.engine import EngineModel, EngineSpec, Scheduling
from extproc.sim.engine_control import Change, EngineControl, HttpCounts
from extproc.sim.engine_frontend import Frontend
from extproc.sim.engine_pacer import EnginePacer
from extproc.sim.openai_request import ApiError, OutputLengths, unreadable
from extproc.sim.vllm_metrics import CONTENT_TYPE, VllmMetrics

__all__ = ["BadEngineOptions", "EngineOptions", "FakeEngine", "Scheduling", "serve_engine"]

LARGEST_BODY_BYTES = 64 * 1024 * 1024
SHUTDOWN_S = 1.0
"""How long a stopping engine waits for its connections to end, seconds."""


class BadEngineOptions(ExtprocError):
    """The sizes given for an engine do not go together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to run one fake engine; the flags of `extproc engine`."""

    listen: str = "127.0.0.1:8000"
    """host:port; port 0 takes a free one."""
    model: str = "llama-3-8b"
    """The model's name in metrics and in `/v1/models`."""
    served_models: tuple[str, ...] = ()
    """Further names under which it answers."""
    kv_tokens: int = 400_000
    block_size: int = 16
    max_num_seqs: int = 256
    chunk: int = 1024
    """Token budget of a step."""
    speed: float = 1.0
    """2.0: twice as fast as the default card (see `EngineSpec`)."""
    scheduling: Scheduling = Scheduling.FCFS
    max_model_len: int | None = None
    """Longest prompt plus answer, tokens; None: what the KV cache holds."""
    max_num_queued_reqs: int | None = None
    """The engine's own cap on sequences inside; above it 503. None: no cap."""
    seed: int = 0
    output_median: float = 200.0
    """Median length of an answer without `ignore_eos`, tokens."""
    output_sigma: float = 0.7
    """Of the logarithm of the answers' lengths; with 0 all have the median length."""
    keepalive_s: float = 5.0
    """Idle connections close after this many seconds, as vLLM's do."""

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, *self.served_models)

    def spec(self) -> EngineSpec:
        """Raises BadEngineOptions for sizes that cannot work."""
        try:
            return EngineSpec(
                kv_tokens=self.kv_tokens,
                block_size=self.block_size,
                max_num_seqs=self.max_num_seqs,
                chunk=self.chunk,
                speed=self.speed,
                scheduling=self.scheduling,
                max_model_len=self.max_model_len,
                max_num_queued_reqs=self.max_num_queued_reqs,
            )
        except ValueError as error:
            raise BadEngineOptions(f"this engine cannot work: {error}") from error


class FakeEngine:
    """A running engine: `async with FakeEngine(options) as engine: ...`. Lives on the loop it is entered on."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.model = EngineModel(options.spec())
        self.counts = HttpCounts()
        self.url = ""
        self.pacer: EnginePacer
        self.control: EngineControl
        self._frontend: Frontend
        self._runner: web.AppRunner
        self._started = int(wall_clock())

    async def __aenter__(self) -> Self:
        options = self.options
        self.pacer = EnginePacer(self.model, LoopClock(asyncio.get_running_loop()))
        metrics = VllmMetrics(self.model.spec, model_name=options.model, created=wall_clock())
        self.control = EngineControl(self.pacer, self.counts, metrics)
        self._frontend = Frontend(
            self.pacer,
            counts=self.counts,
            control=self.control,
            models=options.models,
            lengths=OutputLengths(options.seed, options.output_median, options.output_sigma),
        )
        app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_errors_in_openai_shape])
        app.add_routes(self._routes())
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=options.keepalive_s,
            shutdown_timeout=SHUTDOWN_S,
        )
        await self._runner.setup()
        host, _, port = options.listen.rpartition(":")
        try:
            await web.TCPSite(self._runner, host.strip("[]") or None, int(port)).start()
        except (OSError, ValueError, OverflowError) as error:
            await self._runner.cleanup()
            raise CannotListen(f"--listen: cannot listen on {options.listen}: {_why(error)}") from error
        address, bound_port = self._runner.addresses[0][:2]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{bound_port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._frontend.drain()
        await self._runner.cleanup()
        self.pacer.stop()

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._frontend.chat),
            web.post("/v1/completions", self._frontend.completion),
            web.post("/v1/embeddings", self._frontend.embeddings),
            web.post("/v1/messages", self._frontend.messages),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/metrics/", self._filtered_metrics),
            web.get("/engine/stats", self._stats),
            web.post("/engine/control", self._change),
            web.post("/engine/reset", self._reset),
        ]

    async def _models(self, _: web.Request) -> web.Response:
        card = {"object": "model", "created": self._started, "owned_by": "vllm", "root": self.options.model}
        card |= {"parent": None, "max_model_len": self.model.spec.longest, "permission": []}
        return _json({"object": "list", "data": [{"id": name, **card} for name in self.options.models]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        """Without the slash vLLM does not see the filter."""
        return self._exposition(None)

    async def _filtered_metrics(self, request: web.Request) -> web.Response:
        names = request.query.getall("name[]", [])
        return self._exposition(frozenset(names) if names else None)

    def _exposition(self, names: frozenset[str] | None) -> web.Response:
        body = self.control.metrics_text(names).encode()
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE})

    async def _stats(self, _: web.Request) -> web.Response:
        return _json(self.control.stats())

    async def _change(self, request: web.Request) -> web.Response:
        try:
            change = msgspec.json.decode(await request.read(), type=Change)
        except msgspec.DecodeError as error:
            return web.Response(body=unreadable(str(error)).body, status=400, content_type="application/json")
        self.control.change(change)
        return _json(self.control.stats())

    async def _reset(self, _: web.Request) -> web.Response:
        self.control.reset()
        return _json(self.control.stats())


async def serve_engine(
    options: EngineOptions, *, ready: Callable[[str], None] | None = None, stop: asyncio.Event | None = None
) -> None:
    """Runs an engine until `stop` is set (for ever without one). `ready` is told its URL.

    Raises BadEngineOptions for sizes that cannot work, CannotListen when it cannot listen.
    """
    async with FakeEngine(options) as engine:
        if ready is not None:
            ready(engine.url)
        await (stop or asyncio.Event()).wait()


def _why(error: Exception) -> str:
    """The system's own words; names that do not resolve have negative numbers and words of their own."""
    if not isinstance(error, OSError):
        return "expected host:port"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


@web.middleware
async def _errors_in_openai_shape(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The framework's own errors (unknown path, wrong method, body too large) as vLLM words them."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        status = HTTPStatus(error.status)
        body = ApiError(status, status.phrase, status.phrase).body
        return web.Response(body=body, status=status, content_type="application/json")
