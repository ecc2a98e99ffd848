"""From an engine's KV gauge to a verdict at the gateway: how long, and what the laws say."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Callable
from typing import Any

from extproc.sim.stack import Stack, StackOptions
from tests.support.gateway import CHAT, Gateway, gateway_of

SHORT = {**CHAT, "max_tokens": 1, "stream": False}
POLICY = "pools: [{name: main, controllers: [fixed, watermark], engines: {scrapeInterval: 50ms}}]"
FAST = StackOptions(policy=POLICY, engines=1, engine_args=("--speed", "20"))


async def force(gateway: Gateway, **change: object) -> None:
    async with gateway.http.post(f"{gateway.stack.engine_urls[0]}/engine/control", json=change) as response:
        assert response.status == 200


async def until_status(gateway: Gateway, status: int) -> float:
    """Asks without a pause until the gateway answers so; returns the seconds since the call."""
    start = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        while (await gateway.post(SHORT)).status != status:
            pass
    return asyncio.get_running_loop().time() - start


async def test_a_gauge_that_crosses_the_watermark_changes_verdicts_within_100_ms() -> None:
    async with Stack(FAST) as stack, gateway_of(stack) as gateway:
        took = []
        for _ in range(20):
            await force(gateway, kv_usage=0.95)
            took.append(await until_status(gateway, 429))
            await force(gateway, kv_usage=None)
            await until_status(gateway, 200)
    assert statistics.median(took) < 0.1, f"median of 20: {statistics.median(took) * 1000:.0f} ms"


def showing(kv_usage: float) -> Callable[[Any], bool]:
    return lambda pool: bool(pool["engines"][0]["kv_usage"] == kv_usage)


async def test_the_share_refused_follows_the_law() -> None:
    async with Stack(FAST) as stack, gateway_of(stack) as gateway:
        for kv_usage, least, most in ((0.79, 0, 0), (0.81, 4, 24), (0.86, 34, 66), (0.92, 100, 100)):
            await force(gateway, kv_usage=kv_usage)
            await gateway.until(showing(kv_usage))
            replies = [await gateway.post(SHORT) for _ in range(100)]
            refused = [reply for reply in replies if reply.status == 429]
            assert least <= len(refused) <= most, kv_usage
            assert {reply.headers["x-extproc-reason"] for reply in refused} <= {"overload"}


async def test_engines_that_die_freeze_or_fail_are_seen_and_never_crash_a_loop() -> None:
    async with Stack(FAST) as stack, gateway_of(stack) as gateway:
        engine = stack.children["engine-1"]
        engine.send_signal(signal.SIGKILL)
        await gateway.until(lambda pool: pool["reason"] == "engines-silent")
        pool = await gateway.pool()
        assert pool["engines_reporting"] == 0
        assert pool["engines"][0]["last_error"]
        statuses = {(await gateway.post(SHORT)).status for _ in range(20)}
        assert statuses <= {429, 503}
        assert 500 not in statuses
        async with gateway.http.get(stack.admin_url + "/readyz") as ready:
            assert ready.status == 200
        assert stack.children["extproc"].running
