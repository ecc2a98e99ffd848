"""The open-loop load generator: every request is sent at its intended time, whatever has become of those before it.

Latencies count from the intended time, so a generator or a server that stalls cannot hide it (no coordinated omission);
how late the requests really left is recorded beside. Each request is followed to its end: a whole answer, a refusal, or
the end of its client's patience.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace

import aiohttp

from extproc.model import Priority
from extproc.sim.sse_events import EventCounter
from extproc.sim.workload import Intended

START_DELAY_S = 0.05
"""From the call to the zero of all intended times."""
_REFUSALS = (429, 503)
_WHOLE_SECONDS = re.compile(r"[1-9]\d*")


class End(StrEnum):
    """What became of a request, as its client saw it."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """429 or 503 that says when to come back (Retry-After)."""
    FAILED = "failed"
    """All else: patience ran out, 5xx, a cut stream, a refusal without Retry-After."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One request's fate. Seconds; `ttft_s` and `finished_s` count from the intended time, `late_s` is how much after it
    its head was written to a connection. `first`/`last`: first and last token, None while there was none."""

    intended: Intended
    end: End
    why: str
    status: int
    late_s: float
    finished_s: float
    ttft_s: float | None = None
    last_token_s: float | None = None
    tokens: int = 0
    retry_after_s: float | None = None

    @property
    def priority(self) -> Priority:
        return self.intended.priority

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None for fewer than two."""
        if self.ttft_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        return (self.last_token_s - self.ttft_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the requests go, and how long each client waits for the whole answer (seconds from the intended time)."""

    host: str
    port: int
    path: str = "/v1/chat/completions"
    patience_s: float = 20.0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"


@dataclass(slots=True)
class _Exchange:
    """One request on its way. `sent_at`: loop seconds, when its head was written. `trouble`: why there is no whole answer."""

    sent_at: float | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: EventCounter = field(default_factory=EventCounter)
    trouble: str = ""


async def offer(
    requests: Sequence[Intended], target: Target, *, ended: Callable[[Observation], None] = lambda _: None
) -> list[Observation]:
    """Sends all `requests` and follows them to their end; `ended` is called at each. In order of intended times."""
    loop = asyncio.get_running_loop()
    zero = loop.time() + START_DELAY_S
    tasks: list[asyncio.Task[Observation]] = []
    async with _session() as http, asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(zero + request.at_s - loop.time())
            task = group.create_task(_follow(request, http, target=target, intended_at=zero + request.at_s))
            task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else ended(done.result()))
            tasks.append(task)
    return [task.result() for task in tasks]


def _session() -> aiohttp.ClientSession:
    """Each request on a connection of its own, as from as many clients; no limit on their number and no time limit but
    the client's patience."""
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_note_sent)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[trace],
    )


async def _note_sent(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _sent: aiohttp.TraceRequestHeadersSentParams
) -> None:
    context.trace_request_ctx.sent_at = asyncio.get_running_loop().time()


async def _follow(request: Intended, http: aiohttp.ClientSession, *, target: Target, intended_at: float) -> Observation:
    loop = asyncio.get_running_loop()
    exchange = _Exchange()
    try:
        async with asyncio.timeout_at(intended_at + target.patience_s):
            await _exchange(request, http, url=target.url, exchange=exchange)
    except TimeoutError:
        exchange.trouble = "the client's patience ran out"
    except aiohttp.ClientConnectorError as error:
        exchange.trouble = str(error)
    except aiohttp.ClientResponseError:
        exchange.trouble = "this is not HTTP"
    except aiohttp.ClientError:
        exchange.trouble = "the connection was cut"
    return _judge(request, exchange, intended_at=intended_at, now=loop.time())


async def _exchange(request: Intended, http: aiohttp.ClientSession, *, url: str, exchange: _Exchange) -> None:
    """Leaving it early, by an error or by time, closes the connection, as an impatient client does."""
    now = asyncio.get_running_loop().time
    headers = {"content-type": "application/json", "accept": "text/event-stream", "x-priority": str(request.priority)}
    async with http.post(url, data=request.body, headers=headers, trace_request_ctx=exchange) as response:
        exchange.status = response.status
        exchange.headers = {name.lower(): value for name, value in response.headers.items()}
        async for data in response.content.iter_any():
            exchange.events.feed(data, now())


def _judge(request: Intended, exchange: _Exchange, *, intended_at: float, now: float) -> Observation:
    end, why = _end_of(exchange)
    events = exchange.events
    return Observation(
        intended=request,
        end=end,
        why=why,
        status=exchange.status,
        late_s=(now if exchange.sent_at is None else exchange.sent_at) - intended_at,
        finished_s=now - intended_at,
        ttft_s=None if events.first_at is None else events.first_at - intended_at,
        last_token_s=None if events.last_at is None else events.last_at - intended_at,
        tokens=events.tokens,
        retry_after_s=retry_after_s(exchange.headers) if exchange.status in _REFUSALS else None,
    )


def _end_of(exchange: _Exchange) -> tuple[End, str]:
    status = exchange.status
    if exchange.trouble:
        return End.FAILED, exchange.trouble
    if status == 200:
        trouble = exchange.events.trouble
        return (End.FAILED, trouble) if trouble else (End.COMPLETED, "")
    if status in _REFUSALS and retry_after_s(exchange.headers) is not None:
        return End.REJECTED, exchange.headers.get("x-extproc-reason", "")
    return End.FAILED, f"status {status}"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds a refusal asks to wait: `retry-after` must be there, in whole seconds from 1; `retry-after-ms` is finer."""
    if not _WHOLE_SECONDS.fullmatch(headers.get("retry-after", "")):
        return None
    fine = headers.get("retry-after-ms", "")
    return int(fine) / 1000 if _WHOLE_SECONDS.fullmatch(fine) else float(headers["retry-after"])
