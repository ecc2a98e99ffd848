"""Latency sampled through the real Envoy, against what the clients of the fake engine saw themselves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.clock import LoopClock
from extproc.config import parse_policy
from extproc.model import Latency, Outcome, Priority
from extproc.ports import WireEvent
from extproc.sim.http_engine import EngineOptions, FakeEngine
from extproc.sim.sse_events import EventCounter
from extproc.sim.stack import Stack as StackProcesses
from extproc.sim.stack import StackOptions
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.server import WireServer
from tests.integration.wire_stack import Relay
from tests.support.eventually import eventually
from tests.support.gateway import CHAT, gateway_of
from tests.support.minimal_envoy import EnvoyOptions, run_envoy
from tests.support.observing import Remembering
from tests.support.spine import Spine

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio keeps to one loop per process
POLICY = "envoy: {messageTimeout: 5s}\npools: [{controllers: [vegas]}]"


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer as its client saw it. `first_at`: the loop's time of its first token."""

    first_at: float
    tpot_s: float
    trouble: str


class Watching(Remembering):
    """Also remembers when requests were let go."""

    def __init__(self) -> None:
        super().__init__()
        self.admitted_at: list[float] = []

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None:
        super().decided(outcome, priority, pool, waited_s=waited_s)
        if outcome is Outcome.ADMITTED:
            self.admitted_at.append(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Stack:
    spine: Spine
    service: ExtProcService
    observer: Watching
    engine: FakeEngine
    relay: Relay
    url: str
    http: aiohttp.ClientSession

    async def chat(self, prompt_tokens: int, output_tokens: int) -> Seen:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 4 * prompt_tokens}]}
        body |= {
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        now, counter = asyncio.get_running_loop().time, EventCounter()
        async with self.http.post(self.url + "/v1/chat/completions", json=body) as response:
            async for data in response.content.iter_any():
                counter.feed(data, now())
        assert counter.first_at is not None
        assert counter.last_at is not None
        tpot_s = (counter.last_at - counter.first_at) / (counter.events - 1)
        return Seen(counter.first_at, tpot_s, counter.trouble)

    async def latencies(self, count: int) -> list[Latency]:
        """Of this many finished requests."""
        taken: list[Latency] = []

        def enough() -> bool:
            taken.extend(self.spine.dispatcher.take_latencies())
            return len(taken) >= count

        await eventually(enough)
        return taken


@asynccontextmanager
async def _stack(directory: Path, *, allow_override: bool = True) -> AsyncIterator[Stack]:
    """Client, Envoy, the wire over the real spine, one fake engine at 20 ms a token."""
    clock, observer = LoopClock(asyncio.get_running_loop()), Watching()
    spine = Spine(limit=50, clock=clock, observer=observer, policy=parse_policy(POLICY))
    service = ExtProcService(lambda: spine.admission, observer=observer, clock=clock, envoy=lambda: spine.policy.envoy)
    server = WireServer(service, listen="127.0.0.1:0", max_body_bytes=1 << 20)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine(EngineOptions(listen="127.0.0.1:0", speed=0.4)))
        await server.start()
        stack.push_async_callback(server.stop, 0.0)
        relay = Relay("127.0.0.1", int(server.address.rpartition(":")[2]))
        await relay.start()
        stack.push_async_callback(relay.stop)
        port = int(engine.url.rpartition(":")[2])
        options = EnvoyOptions(
            extproc=relay.address, upstream_port=port, allow_override=allow_override, message_timeout="5s"
        )
        url = await stack.enter_async_context(run_envoy(options, directory))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stack(spine, service, observer, engine, relay, url, http)


def _same(latency: Latency, seen: Seen, admitted_at: float) -> bool:
    """From the moment we let a request go both have the same way to the engine; only the last hop is the client's own."""
    assert latency.ttft_s is not None
    assert latency.tpot_s is not None
    since_admission_s = seen.first_at - admitted_at
    return abs(latency.ttft_s - since_admission_s) < 0.1 and abs(latency.tpot_s / seen.tpot_s - 1) < 0.15


async def test_sampled_times_are_what_the_client_saw(tmp_path: Path) -> None:
    async with _stack(tmp_path) as stack:
        for prompt_tokens in (50, 2000):  # prefill at 80 us a token
            seen = await stack.chat(prompt_tokens, 25)
            [latency] = await stack.latencies(1)
            assert seen.trouble == ""
            assert _same(latency, seen, stack.observer.admitted_at[-1]), (latency, seen)
            ttft_s = latency.ttft_s
            assert latency.duration_s > (latency.ttft_s or 0) + 24 * (latency.tpot_s or 0) - 0.05
        assert ttft_s is not None
        assert ttft_s > 0.15, "2000 tokens of prompt"
        assert stack.observer.events == {}


async def test_of_many_answers_of_one_engine_one_is_sampled_at_a_time(tmp_path: Path) -> None:
    async with _stack(tmp_path) as stack:
        together = await asyncio.gather(*[stack.chat(50, 20 + extra) for extra in range(10)])
        latencies = await stack.latencies(10)
        assert [seen.trouble for seen in together] == [""] * 10
        assert sum(latency.ttft_s is not None for latency in latencies) == 1
        [sample] = [latency for latency in latencies if latency.ttft_s is not None]
        pairs = itertools.product(together, stack.observer.admitted_at)
        assert any(_same(sample, seen, admitted_at) for seen, admitted_at in pairs)
        await stack.chat(50, 10)
        [after] = await stack.latencies(1)
        assert after.ttft_s is not None


async def test_a_client_that_leaves_mid_sample_frees_the_place(tmp_path: Path) -> None:
    async with _stack(tmp_path) as stack:
        leaver = asyncio.ensure_future(stack.chat(50, 1000))
        await eventually(lambda: stack.spine.running == 1 and stack.engine.model.stats.generation_tokens > 5)
        leaver.cancel()
        await eventually(lambda: stack.spine.running == 0)
        assert [latency.ttft_s for latency in await stack.latencies(1)] == [None]
        await stack.chat(50, 10)
        [after] = await stack.latencies(1)
        assert after.ttft_s is not None
        assert stack.spine.ghosts == 0


async def test_a_sampled_answer_reaches_its_client_whole_when_we_are_lost(tmp_path: Path) -> None:
    async with _stack(tmp_path) as stack:
        call = asyncio.ensure_future(stack.chat(50, 40))
        await eventually(lambda: stack.engine.model.stats.generation_tokens > 10)
        stack.relay.cut()
        await eventually(lambda: stack.service.streams == 0)
        assert stack.observer.events[WireEvent.CONNECTION_LOST] == 1
        assert (await call).trouble == ""


async def test_where_envoy_allows_no_override_answers_pass_as_ever(tmp_path: Path) -> None:
    async with _stack(tmp_path, allow_override=False) as stack:
        assert (await stack.chat(50, 10)).trouble == ""
        assert [latency.ttft_s for latency in await stack.latencies(1)] == [None]
        assert stack.spine.running == 0


async def test_served_as_shipped_the_limit_of_vegas_moves_with_the_samples() -> None:
    """The engine's metrics are not read, so only what the gateway sampled can have moved it."""
    policy = "pools: [{name: main, controllers: [vegas], vegas: {signals: [tpot]}}]"
    options = StackOptions(policy=policy, engines=1, serve_args=("--no-scrape",))
    async with StackProcesses(options) as stack, gateway_of(stack) as gateway:
        pool = await gateway.pool()
        assert (pool["priorities"]["P0"]["limit"]["slots"], pool["reason"]) == (10, "no-engines")
        sent = 0
        while pool["priorities"]["P0"]["limit"]["slots"] == 10:  # an answer that comes in one piece is no sample
            assert sent < 5
            assert (await gateway.post({**CHAT, "max_tokens": 40, "ignore_eos": True})).status == 200
            sent += 1
            pool = await gateway.pool()
        assert pool["priorities"]["P0"]["limit"]["slots"] <= 10 + sent
