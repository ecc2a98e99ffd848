"""What every quota promises, over every implementation: in this process, and over a real server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator

import pytest

from extproc.clock import LoopClock
from extproc.model import Allowance, Tenant
from extproc.ports import Quota
from extproc.state.local import LocalQuota
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.shared import quota_replica

TEN = Tenant("ten", quota=Allowance(requests_per_s=2, burst_s=5))
"""Ten requests at once, and then one every half second."""
TOKENS = Tenant("tokens", quota=Allowance(tokens_per_s=100, burst_s=10))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Server]:
    with valkey.running(tmp_path_factory.mktemp("v")) as running:
        yield running


@pytest.fixture(params=["local", "redis"])
async def quota(request: pytest.FixtureRequest, server: valkey.Server) -> AsyncIterator[Quota]:
    if request.param == "local":
        yield LocalQuota(LoopClock(asyncio.get_running_loop()))
        return
    with server.client() as client:
        client.flushall()
    async with quota_replica("a", server.url) as shared:
        yield shared


async def test_as_much_as_the_burst_goes_at_once_and_the_next_when_it_has_refilled(quota: Quota) -> None:
    for _ in range(10):
        assert quota.wait_s(TEN, 5) == 0
        quota.reserve(TEN, 5)
    again_s = quota.wait_s(TEN, 5)
    assert 0.3 < again_s <= 0.5
    await asyncio.sleep(again_s / 2)
    assert 0 < quota.wait_s(TEN, 5) <= again_s * 0.6
    await eventually(lambda: quota.wait_s(TEN, 5) == 0, within_s=again_s)


async def test_asking_reserves_nothing(quota: Quota) -> None:
    before = quota.left(TEN)
    for _ in range(20):
        assert quota.wait_s(TEN, 5) == 0
    assert quota.left(TEN) == before == (math.inf, 10)


async def test_what_is_given_back_may_be_used_at_once(quota: Quota) -> None:
    gives_back = [quota.reserve(TOKENS, 250) for _ in range(4)]
    assert quota.wait_s(TOKENS, 250) > 2
    gives_back[0]()
    assert quota.wait_s(TOKENS, 250) == 0
    assert 250 <= quota.left(TOKENS)[0] < 300


async def test_tenants_have_nothing_to_do_with_each_other(quota: Quota) -> None:
    quota.reserve(TOKENS, 1000)
    assert quota.left(TOKENS)[0] < 50
    assert quota.wait_s(TEN, 1) == 0


async def test_a_reservation_that_overruns_is_owed(quota: Quota) -> None:
    quota.reserve(TOKENS, 1000)
    quota.reserve(TOKENS, 1000)
    await asyncio.sleep(0.05)  # a shared one has heard by now
    assert 9 < quota.wait_s(TOKENS, 1) < 10.1
    assert quota.left(TOKENS)[0] == 0
