"""The open-loop load generator: every request is sent at its intended time, whatever has become of those before it.

Latencies count from the intended time, so a generator or a server that stalls cannot hide it (no coordinated omission);
how late the requests really left is recorded beside. Each request is followed to its end: a whole answer, a refusal, or
the end of its client's patience.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from extproc.model import Priority
from extproc.sim.sse_client import Exchange
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
    the request was written to its connection. `first`/`last`: first and last token, None while there was none."""

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


async def offer(
    requests: Sequence[Intended], target: Target, *, ended: Callable[[Observation], None] = lambda _: None
) -> list[Observation]:
    """Sends all `requests` and follows them to their end; `ended` is called at each. In order of intended times."""
    loop = asyncio.get_running_loop()
    # Rendered before the clock starts: what is prepared now cannot make a request late.
    messages = [_message(request, target) for request in requests]
    zero = loop.time() + START_DELAY_S
    tasks: list[asyncio.Task[Observation]] = []
    async with asyncio.TaskGroup() as group:
        for request, message in zip(requests, messages, strict=True):
            await asyncio.sleep(zero + request.at_s - loop.time())
            task = group.create_task(_follow(request, message, target=target, zero=zero))
            task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else ended(done.result()))
            tasks.append(task)
    return [task.result() for task in tasks]


def _message(request: Intended, target: Target) -> bytes:
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: {target.host}:{target.port}\r\n"
        "content-type: application/json\r\naccept: text/event-stream\r\n"
        f"x-priority: {request.priority}\r\ncontent-length: {len(request.body)}\r\n\r\n"
    )
    return head.encode() + request.body


async def _follow(request: Intended, message: bytes, *, target: Target, zero: float) -> Observation:
    loop = asyncio.get_running_loop()
    intended_at = zero + request.at_s
    exchange = Exchange(message, now=loop.time, ended=loop.create_future())
    patience = loop.call_at(intended_at + target.patience_s, exchange.give_up)
    try:
        await loop.create_connection(lambda: exchange, target.host, target.port)
        await exchange.ended
    except OSError as error:
        now = loop.time()
        return Observation(request, End.FAILED, str(error), 0, now - intended_at, now - intended_at)
    finally:
        patience.cancel()
        exchange.give_up()
    return _judge(request, exchange, intended_at=intended_at, now=loop.time())


def _judge(request: Intended, exchange: Exchange, *, intended_at: float, now: float) -> Observation:
    end, why = _end_of(exchange)
    events = exchange.events
    return Observation(
        intended=request,
        end=end,
        why=why,
        status=exchange.status,
        late_s=(exchange.sent_at or now) - intended_at,
        finished_s=now - intended_at,
        ttft_s=None if events.first_at is None else events.first_at - intended_at,
        last_token_s=None if events.last_at is None else events.last_at - intended_at,
        tokens=events.tokens,
        retry_after_s=retry_after_s(exchange.headers) if exchange.status in _REFUSALS else None,
    )


def _end_of(exchange: Exchange) -> tuple[End, str]:
    status = exchange.status
    if not exchange.whole:
        return End.FAILED, exchange.trouble or "the client's patience ran out"
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
