"""Quotas over a real server: one for all replicas, an overrun that is paid off, and a store that is slow, lost or gone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from extproc.model import Allowance, Tenant
from extproc.state.quota import SharedQuota
from extproc.state.scripts import quota_keys
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.shared import PREFIX, Calls, quota_replica
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.valkey import Server

SLOW = Tenant("slow", quota=Allowance(requests_per_s=1 / 60, burst_s=3600))
"""Sixty requests, and no more while a test lasts."""
FAST = Tenant("fast", quota=Allowance(requests_per_s=100, burst_s=0.5))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with valkey.running(tmp_path_factory.mktemp("v"), port=valkey.free_port()) as running:
        yield running


@pytest.fixture(autouse=True)
def empty(server: Server) -> None:
    with server.client() as client:
        client.flushall()


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(server.port) as proxy:
        yield proxy


def url(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


def take(quota: SharedQuota, tenant: Tenant, most: int = 1) -> int:
    """How many of so many requests go now."""
    for taken in range(most):
        if quota.wait_s(tenant, 1) > 0:
            return taken
        quota.reserve(tenant, 1)
    return most


def requests_left(quota: SharedQuota, tenant: Tenant) -> int:
    return round(quota.left(tenant)[1])


def alone(quota: SharedQuota, tenant: Tenant) -> bool:
    return quota._account(tenant).alone


async def test_what_one_replica_lets_through_the_other_knows_with_its_next_request(server: Server) -> None:
    async with quota_replica("a", server.url) as a, quota_replica("b", server.url) as b:
        assert take(a, SLOW, 50) == 50
        await eventually(lambda: a._account(SLOW).settled)
        assert take(b, SLOW) == 1, "it has never heard of this tenant"
        await eventually(lambda: requests_left(b, SLOW) == 9)
        assert take(b, SLOW, 20) == 9


async def test_replicas_together_give_the_quota_and_over_time_no_more(server: Server) -> None:
    """Each sees its clients come without a pause: the worst that can come in between two calls."""
    async with quota_replica("a", server.url) as a, quota_replica("b", server.url) as b:
        start = asyncio.get_running_loop().time()
        taken = 0
        while (passed_s := asyncio.get_running_loop().time() - start) < 3:
            taken += take(a, FAST) + take(b, FAST)
            await asyncio.sleep(0.002)
    rate_and_burst = 100 * (passed_s + 0.5)
    assert rate_and_burst * 0.85 <= taken <= rate_and_burst + 50


async def test_an_overrun_in_the_same_moment_is_at_most_one_more_burst_and_is_paid_off(server: Server) -> None:
    async with quota_replica("a", server.url) as a, quota_replica("b", server.url) as b:
        assert take(a, SLOW, 100) + take(b, SLOW, 100) == 120
        await eventually(lambda: max(a.wait_s(SLOW, 1), b.wait_s(SLOW, 1)) > 60 * 59)


async def test_many_requests_share_a_call_and_one_alone_is_told_at_once(server: Server) -> None:
    calls = Calls()
    async with quota_replica("a", server.url, calls=calls) as a:
        for _ in range(40):
            a.reserve(SLOW, 1)
        await eventually(lambda: calls.results == ["ok"])
        assert a._account(SLOW).untold.requests_s == 0
        for _ in range(10):
            a.reserve(SLOW, 1)
            await asyncio.sleep(0.01)
        await eventually(lambda: a._account(SLOW).settled)
    assert len(calls.results) <= 4


async def test_a_tenant_that_is_not_there_costs_no_call(server: Server) -> None:
    calls = Calls()
    async with quota_replica("a", server.url, calls=calls) as a:
        a.wait_s(SLOW, 1)
        a.left(SLOW)
        await asyncio.sleep(0.15)
    assert calls.results == []


async def test_without_the_store_each_gives_its_part_and_the_way_back_is_found(server: Server) -> None:
    async with quota_replica("a", server.url, replicas=2) as a:
        assert take(a, SLOW, 20) == 20
        await eventually(lambda: requests_left(a, SLOW) == 40)
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert take(a, SLOW) == 1
            await eventually(lambda: alone(a, SLOW), within_s=0.5)
            start = asyncio.get_running_loop().time()
            assert take(a, SLOW, 60) == 19, "half of what was left"
            assert asyncio.get_running_loop().time() - start < 0.05, "nobody waits for the store"
        finally:
            server.process.send_signal(signal.SIGCONT)
        await eventually(lambda: a._account(SLOW).settled)
        assert requests_left(a, SLOW) == 20, "what it let through meanwhile it has told"


async def test_many_tenants_do_not_storm_a_store_that_is_gone_and_all_are_back_at_once(proxy: TcpProxy) -> None:
    tenants = [Tenant(f"t{number}", quota=SLOW.quota) for number in range(50)]
    calls = Calls()
    async with quota_replica("a", url(proxy), calls=calls) as a:
        await proxy.cut()
        for tenant in tenants:
            a.reserve(tenant, 1)
        await eventually(lambda: all(alone(a, tenant) for tenant in tenants) and len(calls.results) >= len(tenants))
        before = len(calls.results)
        await asyncio.sleep(1)
        assert len(calls.results) - before <= 5
        await proxy.start()
        start = asyncio.get_running_loop().time()
        await eventually(lambda: all(a._account(tenant).settled for tenant in tenants))
        assert asyncio.get_running_loop().time() - start < 1.5


async def test_what_was_used_alone_fades_as_the_part_refills(proxy: TcpProxy) -> None:
    async with quota_replica("a", url(proxy), replicas=2) as a:
        take(a, FAST)
        await eventually(lambda: a._account(FAST).settled)
        await proxy.cut()
        start, taken = asyncio.get_running_loop().time(), 0
        while asyncio.get_running_loop().time() - start < 1.5:
            taken += take(a, FAST)
            await asyncio.sleep(0.002)
        assert 60 <= taken <= 130, "the burst, before it knew, and from then on half the rate"
        await proxy.start()
        await eventually(lambda: a._account(FAST).settled)
        assert a.wait_s(FAST, 1) < 0.3, "it is not made to pay for all that it used meanwhile"


async def test_a_call_whose_answer_was_lost_is_told_again_and_counted_once(server: Server, proxy: TcpProxy) -> None:
    async with quota_replica("a", url(proxy)) as a:
        take(a, SLOW)
        await eventually(lambda: a._account(SLOW).settled)
        proxy.delay_s = 0.05
        assert take(a, SLOW, 10) == 10
        await asyncio.sleep(0.075)  # it is there; the answer is on its way back
        await proxy.cut()
        proxy.delay_s = 0.0
        await proxy.start()
        await eventually(lambda: a._account(SLOW).settled)
        assert requests_left(a, SLOW) == 49


async def test_a_store_that_comes_back_empty_begins_anew(server: Server) -> None:
    async with quota_replica("a", server.url) as a:
        assert take(a, SLOW, 60) == 60
        await eventually(lambda: a._account(SLOW).settled)
        with server.client() as client:
            client.flushall()
            client.script_flush()
        a.reserve(SLOW, 1)
        await eventually(lambda: requests_left(a, SLOW) == 59)


async def test_what_was_not_told_yet_is_told_at_the_end(server: Server) -> None:
    async with quota_replica("a", server.url) as a:
        take(a, SLOW)
        await eventually(lambda: a._account(SLOW).settled)
        assert take(a, SLOW, 10) == 10
    async with quota_replica("b", server.url) as b:
        take(b, SLOW)
        await eventually(lambda: requests_left(b, SLOW) == 48)


async def test_before_it_runs_it_decides_and_afterwards_tells(server: Server) -> None:
    async with quota_replica("a", server.url) as a:
        pass
    assert take(a, SLOW, 61) == 60
    with server.client() as client:
        assert not client.exists(quota_keys(PREFIX, SLOW.name, "a")[0])
