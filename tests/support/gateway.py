"""A client of a stack under test, and what the service says of itself."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from extproc.sim.stack import Stack

CHAT = {"model": "llama-3-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Gateway:
    """Talks to the stack's Envoy; many connections, nothing retried."""

    def __init__(self, stack: Stack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.http = http
        self.url = stack.gateway_url

    async def post(
        self, body: object = CHAT, *, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
    ) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        start = asyncio.get_running_loop().time()
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.http.post(self.url + path, data=io.BytesIO(data), headers=sent) as response:
            content = await response.read()
        took_s = asyncio.get_running_loop().time() - start
        return Reply(response.status, response.headers, content, took_s)

    async def get(self, path: str) -> Reply:
        async with self.http.get(self.url + path) as response:
            return Reply(response.status, response.headers, await response.read(), 0.0)

    async def admin(self, path: str) -> str:
        async with self.http.get(self.stack.admin_url + path) as response:
            return await response.text()

    async def state(self) -> Any:
        return json.loads(await self.admin("/state"))

    async def pool(self) -> Any:
        [pool] = (await self.state())["pools"]
        return pool

    async def until_pool(self, wanted: Mapping[str, float], within_s: float = 5.0) -> float:
        """Waits until this replica's slots in use and requests waiting are as `wanted` says; returns how long it took."""
        return await self.until(lambda pool: wanted.items() <= counts(pool).items(), within_s)

    async def until(self, holds: Callable[[Any], bool], within_s: float = 5.0) -> float:
        """Waits until the pool's state is as wanted; returns how long it took. Another process has no event to await."""
        start = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while not holds(await self.pool()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return asyncio.get_running_loop().time() - start


def counts(pool: Any) -> dict[str, float]:
    """`in_use`: slots, `waiting`: requests, over all priorities."""
    classes = pool["priorities"].values()
    return {
        "in_use": sum(one["in_use"]["slots"] for one in classes),
        "waiting": sum(one["waiting"] for one in classes),
    }


@asynccontextmanager
async def gateway_of(stack: Stack) -> AsyncIterator[Gateway]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=240)) as http:
        yield Gateway(stack, http)
