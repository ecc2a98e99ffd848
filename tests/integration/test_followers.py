"""What a process shows of a pool that another one leads: what it has heard, and nothing that it has not seen itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.config import Policy, parse_policy
from extproc.pools import Pools
from extproc.snapshots import PoolSnapshot
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.metrics_server import metrics_server
from tests.support.shared import process
from tests.support.valkey import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with valkey.running(tmp_path / "v", port=valkey.free_port()) as running:
        yield running


def policy(engine: str) -> Policy:
    return parse_policy(f"pools: [{{engines: {{static: ['{engine}']}}}}]")


def shown(pools: Pools) -> PoolSnapshot:
    (pool,) = pools.snapshots()
    return pool


async def test_a_follower_shows_no_engines_and_says_how_many_report_to_the_leader(server: Server) -> None:
    async with metrics_server() as engine:
        goes_by = policy(engine.engine)
        async with process(server.url, "a", goes_by) as a:
            await eventually(lambda: shown(a).engines_reporting == 1)
            async with process(server.url, "b", goes_by) as b:
                await eventually(lambda: shown(b).state.reason == shown(a).state.reason == "fused")
                assert shown(b).engines == (), "what it does not watch is neither silent nor reporting"
                assert shown(b).engines_reporting == 1
                assert [one.reporting for one in shown(a).engines] == [True]


async def test_a_process_that_only_leads_stands_by_while_another_does(server: Server) -> None:
    async with metrics_server() as engine:
        goes_by = policy(engine.engine)
        async with process(server.url, "a", goes_by) as a:
            await eventually(lambda: shown(a).share is not None and shown(a).share.leading)  # type: ignore[union-attr]
            async with process(server.url, "scraper", goes_by, asks=False) as scraper:
                await asyncio.sleep(0.5)
                assert shown(scraper).state.reason == "stands-by"
                assert shown(scraper).state.rejection == (0.0, 0.0, 0.0)
                assert shown(scraper).engines == ()


async def test_who_is_cut_off_says_why(server: Server) -> None:
    with server.client() as client:
        client.config_set("requirepass", "secret")
    async with process(f"redis://:wrong@127.0.0.1:{server.port}", "a", policy("127.0.0.1:1")) as a:
        await eventually(lambda: (share := shown(a).share) is not None and share.cut_off and share.trouble == "auth")
