"""The fake engine in integration tests: options, the official SDK as its client, a request that fills its cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from openai import AsyncOpenAI

from extproc.sim.http_engine import EngineOptions

OPTIONS = EngineOptions(listen="127.0.0.1:0", speed=4.0)
MODEL = OPTIONS.model
IGNORE_EOS = {"ignore_eos": True}


@asynccontextmanager
async def sdk(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


async def eventually(condition: Callable[[], bool], within_s: float) -> float:
    """Waits until `condition` holds; returns how long it took. The engine's state has no event to wait for."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)
    return loop.time() - begin


def long_chat(**more: object) -> dict[str, object]:
    """A request that runs for many seconds and holds a good part of the cache."""
    return {"messages": [{"role": "user", "content": "x" * 80_000}], "max_tokens": 50_000, "ignore_eos": True, **more}
