"""Microbenchmarks in this process: the codec's and the decision's share of a request."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from bench.messages import request_body, request_head, request_headers, response_headers
from bench.requests import chat_body
from extproc.admin.metrics import Metrics
from extproc.admission import Admission, Candidate
from extproc.clock import LoopClock
from extproc.config import Policy, parse_policy
from extproc.model import End, Load, Pace, PoolState, Priority
from extproc.pool import Pool
from extproc.request import HeaderChanges
from extproc.state.local import LocalQuota
from extproc.tickets import Ticket
from extproc.wire import codec
from extproc.wire.events import Kind

_BATCHES, _PER_BATCH = 200, 100
_DECISION_BATCHES, _DECISIONS = 20, 300
_IN_FLIGHT = 64
_CHANGES = HeaderChanges(set=(("x-vllm-priority", "1"), ("x-extproc-priority", "P1")), remove=("x-priority",))


def measure_codec_us() -> dict[str, float]:
    """Per kind of message, to read it and to have the reply.

    The fastest of many batches: what else runs on the machine can only add to the codec's own time.
    """
    headers, body, response = request_headers(131_072), request_body(chat_body(2048)), response_headers()

    def admit() -> None:
        codec.decode(headers)
        codec.admitted(Kind.REQUEST_HEADERS, _CHANGES)
        codec.metadata("admitted", "P1", "llama", 0)

    return {
        "request headers": _batched_us(admit),
        "2 KB body": _batched_us(lambda: codec.decode(body)),
        "response headers": _batched_us(lambda: codec.decode(response)),
    }


def _batched_us(action: Callable[[], object]) -> float:
    spans = []
    for _ in range(_BATCHES):
        start = time.perf_counter()
        for _ in range(_PER_BATCH):
            action()
        spans.append(time.perf_counter() - start)
    return 1e6 * min(spans) / _PER_BATCH


async def measure_decision_us(policy_text: str) -> dict[int, float]:
    """p50 of classify, cost, admit and end together, per body size, with `_IN_FLIGHT` requests out and metrics on; of the
    quietest batch, as for the codec."""
    policy = parse_policy(policy_text)
    admission = build_admission(policy, Metrics(pool.name for pool in policy.pools))
    return {size: min(_decision_us(admission, size) for _ in range(_DECISION_BATCHES)) for size in (0, 2048, 131_072)}


def build_admission(policy: Policy, metrics: Metrics) -> Admission:
    """The real spine, as the service builds it, with ample limits."""
    clock = LoopClock(asyncio.get_running_loop())
    pools = [Pool(p, policy, scrape=False, clock=clock, observer=metrics, wall=clock.now) for p in policy.pools]
    for pool in pools:
        pool.publisher.publish(_ample(pool))
    dispatchers = {pool.name: pool.dispatcher for pool in pools}
    return Admission(policy, dispatchers, metrics, quota=LocalQuota(clock))


def _ample(pool: Pool) -> PoolState:
    """Bounds that are compared but never reached, a pace among them: what is measured is an admission."""
    limit, pace = Load(1e9, 10_000), Pace(1e9, (1e9, 1e9, 1e9))
    return replace(pool.ledger.state, limits=(limit, limit, limit), rejection=(0.0, 0.0, 0.0), pace=pace)


def _decision_us(admission: Admission, size: int) -> float:
    body = chat_body(size) or None
    heads = [request_head(size, str(priority)) for priority in Priority]
    out: deque[Ticket] = deque()
    spans = []
    for number in range(_DECISIONS):
        head = heads[number % len(heads)]
        start = time.perf_counter()
        candidate = admission.arrive(head)
        assert isinstance(candidate, Candidate)
        ticket = admission.decide(candidate, body)
        if len(out) == _IN_FLIGHT:
            out.popleft().end(End.COMPLETED)
        spans.append(time.perf_counter() - start)
        assert isinstance(ticket, Ticket), ticket
        out.append(ticket)
    while out:
        out.popleft().end(End.COMPLETED)
    return 1e6 * statistics.median(spans)
