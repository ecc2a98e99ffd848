"""Two replicas of one pool with policies of their own, over a real server."""

from __future__ import annotations

from pathlib import Path

from extproc.config import Policy, parse_policy
from extproc.pools import Pools
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.shared import process


def policy(requests: int) -> Policy:
    return parse_policy(f"pools: [{{fixed: {{limit: {{requests: {requests}}}}}}}]")


def differing(pools: Pools) -> int:
    (pool,) = pools.snapshots()
    assert pool.share is not None
    return pool.share.differing


async def test_a_change_that_reached_one_replica_only_shows_at_both_until_it_has_reached_all(tmp_path: Path) -> None:
    with valkey.running(tmp_path) as server:
        async with process(server.url, "a", policy(4)) as a, process(server.url, "b", policy(4)) as b:
            await eventually(lambda: all(one.snapshots()[0].share.replicas == 2 for one in (a, b)))  # type: ignore[union-attr]
            assert differing(a) == differing(b) == 0
            a.use(policy(5))
            await eventually(lambda: differing(a) == differing(b) == 1)
            b.use(policy(5))
            await eventually(lambda: differing(a) == differing(b) == 0)
