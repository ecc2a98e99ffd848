"""The limit as the engine sees it: real Envoy, real service, an upstream that counts who is open.

`EXTPROC_STREAM_S` lengthens the streams (10: two minutes for the first test).
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from extproc.files import envoy_yaml
from extproc.sim.stack import Stack, StackOptions
from tests.support.counting_engine import CountingEngine, counting_engine
from tests.support.eventually import eventually
from tests.support.gateway import CHAT, Gateway, gateway_of

STREAM_S = float(os.environ.get("EXTPROC_STREAM_S", "0.25"))
LIMIT = 4
CLIENTS = 50
POLICY = f"""
queues:
  - {{priority: P0, name: zero, maxQueueSize: 200, timeout: 200s}}
  - {{priority: P1, name: one, maxQueueSize: 500, timeout: 200s}}
  - {{priority: P2, name: two, maxQueueSize: 500, timeout: 200s}}
pools: [{{name: main, engines: {{static: []}}, controllers: [fixed], fixed: {{limit: {{requests: {LIMIT}}}}}}}]
trust: {{headers: [x-priority]}}
"""


@asynccontextmanager
async def limited_gateway(
    stream_s: float, *, envoy: str | None = None
) -> AsyncIterator[tuple[CountingEngine, Gateway]]:
    async with (
        counting_engine(stream_s) as engine,
        Stack(StackOptions(policy=POLICY, engine_addresses=(engine.address,), envoy_yaml=envoy)) as stack,
        gateway_of(stack) as gateway,
    ):
        yield engine, gateway


async def test_the_engine_never_sees_more_than_the_limit_and_a_free_place_is_taken_at_once() -> None:
    async with limited_gateway(STREAM_S) as (engine, gateway):
        replies = await asyncio.gather(*(gateway.post() for _ in range(CLIENTS)))
        await gateway.until_pool({"in_use": 0, "waiting": 0})
    assert [reply.status for reply in replies] == [200] * CLIENTS
    assert engine.most_open == LIMIT
    assert len(engine.ends) == CLIENTS
    gaps = engine.gaps_s(LIMIT)
    assert len(gaps) == CLIENTS - LIMIT
    assert statistics.median(gaps) < 0.05


async def test_a_stop_of_the_service_lets_nobody_by() -> None:
    async with limited_gateway(STREAM_S) as (engine, gateway):
        posts = [asyncio.ensure_future(gateway.post()) for _ in range(CLIENTS)]
        await gateway.until_pool({"in_use": LIMIT, "waiting": CLIENTS - LIMIT})
        service = gateway.stack.children["extproc"]
        service.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(1)  # the fault itself: the service stands still for one second
        finally:
            service.send_signal(signal.SIGCONT)
        replies = await asyncio.gather(*posts)
        await gateway.until_pool({"in_use": 0, "waiting": 0})
    assert [reply.status for reply in replies] == [200] * CLIENTS
    assert engine.most_open == LIMIT


async def test_a_client_that_leaves_the_queue_is_gone_from_it_within_50_ms() -> None:
    async with limited_gateway(30) as (engine, gateway):
        running = [asyncio.ensure_future(gateway.post()) for _ in range(LIMIT)]
        await eventually(lambda: engine.open == LIMIT)
        took = []
        for _ in range(5):
            waiting = asyncio.ensure_future(gateway.post())
            await gateway.until_pool({"in_use": LIMIT, "waiting": 1})
            waiting.cancel()
            took.append(await gateway.until_pool({"in_use": LIMIT, "waiting": 0}))
        assert statistics.median(took) < 0.05
        assert len(engine.starts) == LIMIT
        for task in running:
            task.cancel()


async def test_a_client_that_leaves_mid_stream_frees_its_place_and_the_engine_sees_the_reset() -> None:
    async with limited_gateway(30) as (engine, gateway):
        running = [asyncio.ensure_future(gateway.post()) for _ in range(LIMIT)]
        await eventually(lambda: engine.open == LIMIT)
        waiting = asyncio.ensure_future(gateway.post())
        await gateway.until_pool({"in_use": LIMIT, "waiting": 1})
        running[0].cancel()
        await eventually(lambda: len(engine.resets) == 1, within_s=1)
        await eventually(lambda: len(engine.starts) == LIMIT + 1, within_s=1)
        assert engine.most_open <= LIMIT + 1  # the fifth may reach the engine in the same instant as the reset
        for task in (*running, waiting):
            task.cancel()
        await gateway.until_pool({"in_use": 0, "waiting": 0})


async def test_priorities_are_served_in_order_and_reach_the_engine_as_ours() -> None:
    async with limited_gateway(0.3) as (engine, gateway):
        first = [asyncio.ensure_future(gateway.post()) for _ in range(LIMIT)]
        await eventually(lambda: engine.open == LIMIT)
        later = []
        for priority in ("P2", "P1", "P0"):
            for _ in range(LIMIT):
                headers = {"x-priority": priority, "x-vllm-priority": "-9", "x-extproc-priority": "P0"}
                later.append(asyncio.ensure_future(gateway.post(headers=headers)))
            await gateway.until_pool({"waiting": float(len(later))})
        await asyncio.gather(*first, *later)
    seen = [headers["x-vllm-priority"] for headers in engine.headers]
    assert seen == ["1"] * LIMIT + ["0"] * LIMIT + ["1"] * LIMIT + ["2"] * LIMIT
    assert {headers["x-extproc-priority"] for headers in engine.headers} == {"P0", "P1", "P2"}
    assert not any("x-priority" in headers for headers in engine.headers)


async def test_sigterm_answers_who_waits_and_follows_who_runs() -> None:
    async with limited_gateway(1.0) as (engine, gateway):
        running = [asyncio.ensure_future(gateway.post()) for _ in range(LIMIT)]
        await eventually(lambda: engine.open == LIMIT)
        waiting = asyncio.ensure_future(gateway.post())
        await gateway.until_pool({"in_use": LIMIT, "waiting": 1})
        service = gateway.stack.children["extproc"]
        service.send_signal(signal.SIGTERM)
        refused = await waiting
        assert refused.status == 503
        assert refused.headers["x-extproc-reason"] == "draining"
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert [reply.status for reply in await asyncio.gather(*running)] == [200] * LIMIT
        await eventually(lambda: not service.running)
        assert engine.most_open == LIMIT


async def test_a_killed_service_fails_open_and_envoys_backstop_answers_with_retry_after() -> None:
    backstop = 40
    envoy = envoy_yaml().replace("max_requests: 600", f"max_requests: {backstop}")
    async with limited_gateway(1.0, envoy=envoy) as (engine, gateway):
        gateway.stack.children["extproc"].send_signal(signal.SIGKILL)
        await eventually(lambda: not gateway.stack.children["extproc"].running)
        replies = await asyncio.gather(*(gateway.post() for _ in range(backstop + 20)))
    by_status = {status: [r for r in replies if r.status == status] for status in {reply.status for reply in replies}}
    assert set(by_status) == {200, 429}
    assert engine.most_open <= backstop
    for reply in by_status[429]:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json["error"]["code"] == "rate_limit_exceeded"


async def test_a_service_that_drains_costs_nobody_an_answer() -> None:
    """A graceful stop was an outage of the grace time: Envoy kept asking the only replica, which answered 503."""
    async with limited_gateway(3.0) as (_, gateway):
        running = asyncio.ensure_future(gateway.post())
        await gateway.until_pool({"in_use": 1})
        gateway.stack.children["extproc"].send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while not await drained(gateway):
                pass
        assert gateway.stack.children["extproc"].running
        replies = await asyncio.gather(*(gateway.post() for _ in range(2 * LIMIT)), running)
    assert [reply.status for reply in replies] == [200] * (2 * LIMIT + 1)


async def drained(gateway: Gateway) -> bool:
    async with gateway.http.get(gateway.stack.envoy_admin_url + "/clusters") as response:
        return "/failed_active_hc" in await response.text()


async def test_an_untrusted_priority_header_changes_nothing() -> None:
    policy = POLICY.replace("trust: {headers: [x-priority]}", "")
    async with (
        counting_engine(0.01) as engine,
        Stack(StackOptions(policy=policy, engine_addresses=(engine.address,))) as stack,
        gateway_of(stack) as gateway,
    ):
        for value in ("P0", "P0, P0", ""):
            assert (await gateway.post(CHAT, headers={"x-priority": value})).status == 200
    assert {headers["x-extproc-priority"] for headers in engine.headers} == {"P1"}


async def test_the_gateway_answers_while_a_slow_client_uploads() -> None:
    """A refusal or a place in the queue must not wait for bodies that never come."""
    async with limited_gateway(0.05) as (_, gateway), aiohttp.ClientSession() as other:

        async def dripping() -> AsyncIterator[bytes]:
            yield b'{"model": "x", '
            await asyncio.Event().wait()

        upload = asyncio.ensure_future(
            other.post(
                gateway.url + "/v1/chat/completions", data=dripping(), headers={"content-type": "application/json"}
            )
        )
        replies = await asyncio.gather(*(gateway.post() for _ in range(20)))
        assert [reply.status for reply in replies] == [200] * 20
        upload.cancel()
        await gateway.until_pool({"in_use": 0, "waiting": 0})


async def test_a_burst_of_a_thousand_clients_does_not_slip_past_the_limit() -> None:
    """Two defaults let it: Envoy's short message_timeout, and grpc's refusal of streams beyond 1000 not yet handled."""
    async with limited_gateway(0.2) as (engine, gateway):
        replies = await asyncio.gather(*(gateway.post(headers={"x-stainless-read-timeout": "2"}) for _ in range(1200)))
        async with gateway.http.get(gateway.stack.envoy_admin_url + "/stats?filter=failure_mode_allowed") as response:
            let_pass = await response.text()
    assert engine.most_open == LIMIT
    assert {reply.status for reply in replies} == {200, 429}
    assert "failure_mode_allowed: 0" in let_pass
