"""The clients of `bench.replicas`: so many that always have one request open, or so many requests a second."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
_PRIORITIES = ("P1", "P2", "P0", "P2")
_WAY_EVERY_S = 0.03
_PAUSE_S = 0.5
"""After a refusal a client waits so long."""


@dataclass(slots=True)
class Sent:
    """One request as its client saw it. `at`: when it was written out. `status` 0: not ended yet; 599: the connection broke."""

    number: int
    priority: str
    at: float
    status: int = 0


class Clients:
    """Those that are kept are P2, so that there is always somebody for P0 and P1 to go before."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._unlimited_url = f"{url}/v1/models"
        self._numbers = itertools.count(1)
        self.sent: list[Sent] = []
        self.unlimited: list[Sent] = []
        """Those that extproc passes untouched; their numbers are negative."""
        self._tasks: set[asyncio.Task[None]] = set()
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(_written)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[tracing],
        )

    def keep(self, count: int) -> None:
        """That many clients, each with one request open."""
        for _ in range(count):
            self._start(self._again_and_again("P2"))

    async def steady_rate(self, per_s: float, for_s: float) -> None:
        """Open loop: what takes long holds nothing up."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for i in range(int(per_s * for_s)):
            await asyncio.sleep(max(0.0, start + i / per_s - loop.time()))
            self._start(self._one(_PRIORITIES[i % len(_PRIORITIES)]))

    async def trickle(self, every_s: float) -> None:
        """Until cancelled: a P0 and a P1 in turn."""
        for priority in itertools.cycle(("P0", "P1")):
            self._start(self._one(priority))
            await asyncio.sleep(every_s)

    async def stop(self) -> None:
        """All clients leave."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        await self.stop()
        await self._http.close()

    def since(self, start: float) -> Sequence[Sent]:
        return [one for one in self.sent if one.at >= start]

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again_and_again(self, priority: str) -> None:
        while True:
            status = await self._one(priority)
            if status != 200:
                await asyncio.sleep(_PAUSE_S)

    async def measure_the_way(self) -> None:
        """Until cancelled."""
        while True:
            self._start(self._unlimited())
            await asyncio.sleep(_WAY_EVERY_S)

    async def _unlimited(self) -> None:
        sent = Sent(-1 - len(self.unlimited), "", asyncio.get_running_loop().time())
        self.unlimited.append(sent)
        headers = {"x-number": str(sent.number)}
        with suppress(aiohttp.ClientError):
            async with self._http.get(self._unlimited_url, headers=headers, trace_request_ctx=sent) as response:
                await response.read()
                sent.status = response.status

    async def _one(self, priority: str) -> int:
        sent = Sent(next(self._numbers), priority, asyncio.get_running_loop().time())
        self.sent.append(sent)
        headers = {"content-type": "application/json", "x-priority": priority, "x-number": str(sent.number)}
        try:
            async with self._http.post(
                self._url, data=io.BytesIO(_BODY), headers=headers, trace_request_ctx=sent
            ) as response:
                await response.read()
                sent.status = response.status
        except aiohttp.ClientError:
            sent.status = 599
        return sent.status


async def _written(_: aiohttp.ClientSession, trace: SimpleNamespace, __: aiohttp.TraceRequestHeadersSentParams) -> None:
    """Before that it waited for this process, or for its connection, but not yet for anybody's word."""
    trace.trace_request_ctx.at = asyncio.get_running_loop().time()
