"""Our whole share of a request in Python, gRPC left out: a stream's messages fed by hand into the servicer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from bench.bare import process as bare_process
from bench.messages import request_body, request_headers, response_headers
from bench.micro import build_admission
from bench.requests import chat_body
from extproc.admin.metrics import Metrics
from extproc.clock import LoopClock
from extproc.config import parse_policy
from extproc.wire.ext_proc import ExtProcService

_BATCHES, _PER_BATCH = 21, 100


class _Script:
    """Implements `shared.Context`: a call whose messages are there at once, and whose replies cost nothing."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._left = iter(messages)
        self.replies = 0

    async def read(self) -> object:
        for message in self._left:
            return message
        raise asyncio.CancelledError  # Envoy resets a stream at the end of its request

    async def write(self, _message: bytes) -> None:
        self.replies += 1

    def peer(self) -> str:
        return "ipv4:192.0.2.1:40000"


async def measure_stream_us(policy_text: str) -> dict[str, float]:
    """One request's stream, with a 2 KB body, in the quietest batch: the bare server's and ours."""
    messages = [request_headers(2048), request_body(chat_body(2048)), response_headers()]
    clock = LoopClock(asyncio.get_running_loop())
    policy = parse_policy(policy_text)
    metrics = Metrics(pool.name for pool in policy.pools)
    admission = build_admission(policy, metrics)
    service = ExtProcService(lambda: admission, observer=metrics, clock=clock, envoy=lambda: policy.envoy)
    spans: dict[str, list[float]] = {"bare": [], "extproc": []}
    for _ in range(_BATCHES):
        for name, process in (("bare", bare_process), ("extproc", service._process)):
            scripts = [_Script(messages) for _ in range(_PER_BATCH)]
            start = time.perf_counter()
            for script in scripts:
                with suppress(asyncio.CancelledError):
                    await process(None, script)
            spans[name].append(time.perf_counter() - start)
            assert all(script.replies == len(messages) for script in scripts)
    return {name: 1e6 * min(times) / _PER_BATCH for name, times in spans.items()}
