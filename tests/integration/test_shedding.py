"""Who is refused outright, and when they are told to come back: as clients see it, through the shipped Envoy."""

from __future__ import annotations

import asyncio

from extproc.levels import EPOCH_S
from extproc.sim.stack import Stack, StackOptions
from tests.support.counting_engine import counting_engine
from tests.support.gateway import CHAT, Gateway, Reply, gateway_of
from tests.support.waves import peak_over_mean, peak_over_mean_of_seconds

HALF = "pools: [{name: main, engines: {static: []}, controllers: [fixed], override: {rejection: 0.5}}]"
NOBODY_WAITS = """
queues: [{priority: P1, name: one, maxQueueSize: 0, timeout: 15s}]
pools: [{name: main, engines: {static: []}, controllers: [fixed], fixed: {limit: {requests: 4}}}]
"""


async def attempts(gateway: Gateway, words: int) -> set[int]:
    """Three times, as the SDKs try, the same request, each time with other words about itself; the statuses."""
    body = CHAT | {"messages": [{"role": "user", "content": "hello " * words}]}
    made_up = [
        {
            "x-request-id": f"{words}-{count}",
            "x-stainless-retry-count": f"{count}",
            "x-envoy-attempt-count": f"{count + 1}",
            "x-forwarded-for": f"203.0.113.{count}",
            "x-session-id": f"{count}",
            "user-agent": f"client/{count}",
        }
        for count in range(3)
    ]
    return {
        (await gateway.post(body, path=f"/v1/chat/completions?{i}", headers=one)).status
        for i, one in enumerate(made_up)
    }


async def test_two_replicas_that_share_nothing_give_a_client_one_verdict_however_it_comes_back() -> None:
    async with (
        counting_engine(0.001) as engine,
        Stack(StackOptions(policy=HALF, engine_addresses=(engine.address,), replicas=2)) as stack,
        gateway_of(stack) as gateway,
    ):
        began = asyncio.get_running_loop().time()
        seen = await asyncio.gather(*(attempts(gateway, words) for words in range(200)))
        turned = (asyncio.get_running_loop().time() - began) / EPOCH_S
        counted = (await gateway.pool())["priorities"]["P1"]
    assert set().union(*seen) == {200, 429}
    # Some keys' minute ended meanwhile. Drawn anew at each attempt, a quarter would have one verdict.
    assert sum(len(one) == 1 for one in seen) >= 200 * (1 - turned) - 16
    assert turned < 0.5, "the machine is too slow to tell"
    assert sum(one == {429} for one in seen) > 30
    assert counted["retries"] > 100
    assert counted["amplification"] > 2, "three, as far as this replica saw them"


async def test_a_thousand_obedient_clients_come_back_in_no_wave() -> None:
    told: list[tuple[float, int, int]] = []

    async def refused(gateway: Gateway, number: int) -> None:
        await asyncio.sleep(number / 1000)  # the burst itself: a thousand within a second
        reply = await gateway.post()
        if reply.status == 429:
            told.append((asyncio.get_running_loop().time(), *retry_after(reply)))

    async with (
        counting_engine(2) as engine,
        Stack(StackOptions(policy=NOBODY_WAITS, engine_addresses=(engine.address,))) as stack,
        gateway_of(stack) as gateway,
    ):
        await asyncio.gather(*(gateway.post() for _ in range(4)))
        await gateway.until_pool({"in_use": 0, "waiting": 0})
        running = [asyncio.ensure_future(gateway.post()) for _ in range(4)]
        await gateway.until_pool({"in_use": 4, "waiting": 0})
        await asyncio.gather(*(refused(gateway, number) for number in range(1000)))
        await asyncio.gather(*running)
    assert len(told) > 900
    assert all(1 <= seconds <= 60 and seconds * 1000 - 1000 < millis <= seconds * 1000 for _, seconds, millis in told)
    assert peak_over_mean_of_seconds(seconds for _, seconds, _ in told) <= 1.3
    # Seventeen a second, and a busy machine's delays on top: no wave, but not as even as in virtual time.
    assert peak_over_mean(at + millis / 1000 for at, _, millis in told) <= 1.5
    assert peak_over_mean_of_seconds(at + seconds for at, seconds, _ in told) <= 1.5


def retry_after(reply: Reply) -> tuple[int, int]:
    return int(reply.headers["retry-after"]), int(reply.headers["retry-after-ms"])
