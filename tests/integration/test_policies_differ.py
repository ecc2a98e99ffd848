"""Two replicas of one pool with policies of their own, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from extproc.clock import LoopClock, wall_clock
from extproc.config import Policy, parse_policy
from extproc.pools import Pools
from extproc.state.redis import RedisState
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.observing import Remembering
from tests.support.shared import Calls


def policy(requests: int) -> Policy:
    return parse_policy(f"pools: [{{fixed: {{limit: {{requests: {requests}}}}}}}]")


@asynccontextmanager
async def pools(url: str, name: str, first: Policy) -> AsyncIterator[Pools]:
    clock = LoopClock(asyncio.get_running_loop())
    store = RedisState(url, "test", process=name, clock=clock, watch=Calls(), may_lead=True)
    made = Pools(first, store=store, scrape=True, clock=clock, observer=Remembering(), wall=wall_clock)
    running = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait({running})
        await store.close()


def differing(pools: Pools) -> int:
    (pool,) = pools.snapshots()
    assert pool.share is not None
    return pool.share.differing


async def test_a_change_that_reached_one_replica_only_shows_at_both_until_it_has_reached_all(tmp_path: Path) -> None:
    with valkey.running(tmp_path) as server:
        async with pools(server.url, "a", policy(4)) as a, pools(server.url, "b", policy(4)) as b:
            await eventually(lambda: all(one.snapshots()[0].share.replicas == 2 for one in (a, b)))  # type: ignore[union-attr]
            assert differing(a) == differing(b) == 0
            a.use(policy(5))
            await eventually(lambda: differing(a) == differing(b) == 1)
            b.use(policy(5))
            await eventually(lambda: differing(a) == differing(b) == 0)
