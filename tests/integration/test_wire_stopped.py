"""The process does not run for a second: what Envoy let pass meanwhile is held as ghost load, and nothing twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.support.eventually import eventually
from tests.support.minimal_envoy import EnvoyOptions, run_envoy
from tests.support.named_upstream import Upstream, run_upstream
from tests.support.wire_process import WireProcess, run_wire_process

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio keeps to one loop per process
LIMIT = 4
STALL_S = 1.0


@dataclass(slots=True)
class Stack:
    wire: WireProcess
    upstream: Upstream
    url: str
    session: aiohttp.ClientSession
    calls: list[asyncio.Task[int]]
    begun: set[str]
    """Requests of which the client has response headers: Envoy has had our reply to them."""

    def call(self, name: str) -> asyncio.Task[int]:
        self.calls.append(asyncio.ensure_future(self._call(name)))
        return self.calls[-1]

    async def _call(self, name: str) -> int:
        async with self.session.post(f"{self.url}/v1/chat/completions", headers={"x-name": name}) as response:
            self.begun.add(name)
            await response.read()
            return response.status

    async def stopped(self) -> None:
        """The process stands still for `STALL_S`."""
        self.wire.signal(signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        self.wire.signal(signal.SIGCONT)

    async def until_state(self, **expected: float) -> dict[str, object]:
        async with asyncio.timeout(3):
            while True:
                state = await self.wire.state()
                if all(state[name] == pytest.approx(value, abs=0.2) for name, value in expected.items()):
                    return state


@asynccontextmanager
async def stack(directory: Path) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as exits:
        wire = await exits.enter_async_context(run_wire_process(limit=LIMIT))
        upstream = await exits.enter_async_context(run_upstream())
        url = await exits.enter_async_context(run_envoy(EnvoyOptions(wire.address, upstream.port), directory))
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        running = Stack(wire, upstream, url, session, [], set())
        try:
            yield running
        finally:
            for call in running.calls:
                call.cancel()
            await asyncio.gather(*running.calls, return_exceptions=True)


async def test_with_four_running_and_many_waiting_a_stop_lets_nobody_slip_through(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        for number in range(LIMIT):
            s.call(f"r{number}")
        await eventually(lambda: len(s.begun) == LIMIT)
        for number in range(46):
            s.call(f"w{number}")
        await s.until_state(running=LIMIT, waiting=46)
        stopped = asyncio.ensure_future(s.stopped())
        await asyncio.sleep(STALL_S / 2)
        s.upstream.finish("r0")  # a slot frees while we stand still
        await stopped
        await s.until_state(running=LIMIT, waiting=45, ghosts=0)
        await eventually(lambda: len(s.upstream.running) == LIMIT)
        assert s.upstream.most_running == LIMIT


async def test_responses_that_begin_while_we_stand_still_become_ghosts(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        names = [f"r{number}" for number in range(LIMIT)]
        begin = [s.upstream.hold_headers(name) for name in names]
        for name in names:
            s.call(name)
        await eventually(lambda: len(s.upstream.running) == LIMIT)
        s.call("waiting")
        await s.until_state(running=LIMIT, waiting=1)
        stopped = asyncio.ensure_future(s.stopped())
        await asyncio.sleep(0.1)
        for go in begin:
            go()  # Envoy asks us about the response headers, hears nothing, and goes on without us
        await stopped
        state = await s.until_state(running=0, waiting=1, ghosts=LIMIT)
        assert state["ends"] == {"ghost": LIMIT}
        assert s.upstream.most_running == LIMIT


async def test_a_request_that_envoy_let_pass_unseen_is_counted(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        s.call("first")
        await eventually(lambda: "first" in s.begun)
        stopped = asyncio.ensure_future(s.stopped())
        await asyncio.sleep(0.1)
        s.call("unseen")
        await eventually(lambda: "unseen" in s.upstream.running)
        await stopped
        async with asyncio.timeout(3):
            while not (state := await s.wire.state())["events"]:
                pass
        assert state["events"] == {"late-reset": 1}
        assert state["running"] == 1
