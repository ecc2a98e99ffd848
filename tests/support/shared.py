"""Replicas of one pool over a real server, each a ledger with a dispatcher's manners, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.clock import LoopClock, wall_clock
from extproc.config import Policy
from extproc.model import NOTHING, Hold, Load, PoolState, Priority
from extproc.pools import Pools
from extproc.ports import Ask, Verdicts, Want
from extproc.state.asking import SharedLedger
from extproc.state.link import Link
from extproc.state.quota import SharedQuota
from extproc.state.redis import RedisState, SharedPool
from extproc.state.scripts import keys_of, pack_state
from tests.support.observing import Remembering
from tests.support.valkey import Server

PREFIX = "extproc"
POOL = "main"
KEYS = keys_of(PREFIX, POOL)


def put_state(server: Server, state: PoolState) -> None:
    """As a leader would have, in a generation long settled."""
    packed, fingerprint = pack_state(state)
    with server.client() as client:
        client.hset(KEYS.facts, mapping={"state": packed, "fingerprint": fingerprint, "generation": "1"})


class Calls:
    """A `Watch` that remembers."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.took_s: list[float] = []

    def state_called(self, result: str) -> None:
        self.results.append(result)

    def state_answered(self, took_s: float) -> None:
        self.took_s.append(took_s)


class Node:
    """One replica. `held`: its requests, one slot each; `waiting`: priorities, with when they came."""

    def __init__(self, name: str, shared: SharedPool) -> None:
        self.name = name
        self.shared = shared
        self.ledger: SharedLedger = shared.ledger
        self.clock = LoopClock(asyncio.get_running_loop())
        self.held: list[Priority] = []
        self.waiting: list[tuple[Priority, float]] = []
        self.admitted_at: list[float] = []
        self.calls: list[str] = []
        self.changed = asyncio.Event()
        self._asking = False
        self._dirty = False
        self.ledger.on_wake(self.woken)

    def woken(self) -> None:
        if self.waiting:
            self.ask()

    def arrive(self, priority: Priority = Priority.P1) -> None:
        self.waiting.append((priority, self.clock.now()))
        self.ask()

    def end(self) -> None:
        self.held.pop(0)
        self.ask()

    def ask(self) -> None:
        """One at a time, as a dispatcher does."""
        if self._asking:
            self._dirty = True
            return
        self._asking, self._dirty = True, False
        self.waiting.sort()
        now = self.clock.now()
        loads = [Load(10, 1).scaled(self.held.count(priority)) for priority in Priority]
        wants = [Want(priority, Load(10, 1), now - came) for priority, came in self.waiting[:16]]
        self.ledger.ask(Ask((loads[0], loads[1], loads[2]), wants, hold=Hold(5.0)), self._answered)

    def _answered(self, verdicts: Verdicts) -> None:
        self._asking = False
        for priority, _ in self.waiting[: verdicts.admitted]:
            self.held.append(priority)
            self.admitted_at.append(self.clock.now())
        del self.waiting[: verdicts.admitted]
        if verdicts.ask_again_s is not None and self.waiting:
            self.clock.call_at(self.clock.now() + verdicts.ask_again_s, self.woken)
        self.changed.set()
        if self._dirty:
            self.ask()

    async def until(self, held: int, within_s: float = 2.0) -> None:
        async with asyncio.timeout(within_s):
            while len(self.held) != held:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def replica(name: str, url: str, *, may_lead: bool = False) -> AsyncIterator[Node]:
    state = RedisState(
        url,
        PREFIX,
        process=name,
        clock=LoopClock(asyncio.get_running_loop()),
        watch=(watch := Calls()),
        may_lead=may_lead,
    )
    node = Node(name, state.pool(POOL, PoolState(limits=(NOTHING,) * 3)))
    node.calls = watch.results
    running = asyncio.ensure_future(node.shared.run())
    try:
        yield node
    finally:
        running.cancel()
        await asyncio.wait({running})
        await state.close()


@asynccontextmanager
async def quota_replica(
    name: str, url: str, *, replicas: int = 1, calls: Calls | None = None
) -> AsyncIterator[SharedQuota]:
    """The quotas of one replica, that believes there are `replicas`."""
    clock = LoopClock(asyncio.get_running_loop())
    state = RedisState(url, PREFIX, process=name, clock=clock, watch=calls or Calls(), may_lead=False)
    quota = state.quota(lambda: replicas)
    running = asyncio.ensure_future(quota.run())
    await asyncio.sleep(0)
    try:
        yield quota
    finally:
        running.cancel()
        await asyncio.wait({running})
        await state.close()


@asynccontextmanager
async def process(url: str, name: str, goes_by: Policy, *, asks: bool = True) -> AsyncIterator[Pools]:
    """The pools of one process. `asks` False: one without requests."""
    clock = LoopClock(asyncio.get_running_loop())
    store = RedisState(url, "test", process=name, clock=clock, watch=Calls(), may_lead=True, asks=asks)
    made = Pools(goes_by, store=store, scrape=True, clock=clock, observer=Remembering(), wall=wall_clock)
    running = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait({running})
        await store.close()


__all__ = ["KEYS", "POOL", "PREFIX", "Link", "Node", "process", "put_state", "quota_replica", "replica"]
