"""Ledgers over a real server: one limit, wakes, trouble of every kind and the way back."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from extproc.errors import StateUnavailable
from extproc.meters import Traffic
from extproc.model import NOTHING, Demand, Finished, Latency, Priority
from extproc.state.link import Link, run
from extproc.state.scripts import Script
from tests.support import valkey
from tests.support.eventually import eventually
from tests.support.pools import limited
from tests.support.shared import KEYS, put_state, replica
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.valkey import Server

P0, P1, P2 = Priority


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


async def test_two_replicas_share_a_limit_and_a_freed_place_reaches_the_other_at_once(server: Server) -> None:
    put_state(server, limited(4))
    async with replica("a", server.url) as a, replica("b", server.url) as b:
        for _ in range(4):
            a.arrive()
        await a.until(held=4)
        for _ in range(4):
            b.arrive()
        gaps = []
        for taken in range(1, 5):
            freed_at = a.clock.now()
            a.end()
            await b.until(held=taken)
            gaps.append(b.admitted_at[-1] - freed_at)
            assert len(a.held) + len(b.held) == 4
    assert statistics.median(gaps) < 0.02


async def test_p0_elsewhere_goes_before_p2_here(server: Server) -> None:
    put_state(server, limited(1))
    async with replica("a", server.url) as a, replica("b", server.url) as b:
        a.arrive()
        await a.until(held=1)
        b.arrive(P0)
        a.arrive(P2)
        await eventually(lambda: "b" in _heard(server))
        a.end()
        await b.until(held=1)
        assert a.held == []
        b.end()
        await a.until(held=1)


def _heard(server: Server) -> set[str]:
    with server.client() as client:
        return {name.decode() for name in client.hkeys(KEYS.replicas)}


async def test_a_stopped_store_costs_nobody_more_than_the_deadline_and_the_way_back_is_found(server: Server) -> None:
    put_state(server, limited(8))
    async with replica("a", server.url) as a, replica("b", server.url) as b:
        for node in (a, b):
            node.arrive()
            await node.until(held=1)
        await eventually(lambda: a.ledger.replicas == 2)
        server.process.send_signal(signal.SIGSTOP)
        try:
            start = a.clock.now()
            a.arrive()
            a.end()  # what ends is replaced
            await a.until(held=1)
            assert a.clock.now() - start < 0.2
            for _ in range(20):
                a.arrive(P0)
            a.arrive(P2)
            await eventually(lambda: a.ledger.cut_off)
            assert a.ledger.state.rejection == (0.0, 0.0, 1.0)
            assert a.ledger.state.limits[0].slots <= 0.9 * 8 / 2
            assert len(a.held) <= 3
        finally:
            server.process.send_signal(signal.SIGCONT)
        await eventually(lambda: not a.ledger.cut_off and not b.ledger.cut_off, within_s=4)
        assert a.ledger.state == limited(8) or a.ledger.state.limits == limited(8).limits
        assert len(a.held) + len(b.held) <= 8
        await a.until(held=7, within_s=4)  # everything that is free, and P2 waits for more
        assert len(a.held) + len(b.held) == 8


async def test_a_slow_store_is_left_alone_until_it_answers_in_time(server: Server, proxy: TcpProxy) -> None:
    put_state(server, limited(8))
    async with replica("a", url(proxy)) as a:
        a.arrive()
        await a.until(held=1)
        async with replica("b", server.url) as b:
            await eventually(lambda: b.ledger.replicas == 2)  # and is heard of no more
        proxy.delay_s = 0.1
        a.arrive()
        a.end()
        start = a.clock.now()
        await a.until(held=1)
        assert a.clock.now() - start < 0.2
        await eventually(lambda: a.ledger.cut_off)
        proxy.delay_s = 0.0
        await eventually(lambda: not a.ledger.cut_off)
        results = list(a.calls)
        # it comes back with care: others know only what it last said while it was slow
        await eventually(lambda: _entry(server, "a")[4] > 0)
    assert results.count("late") >= 2
    assert results[-1] == "ok"


def _entry(server: Server, replica: str) -> list[float]:
    with server.client() as client:
        return list(msgspec.msgpack.decode(bytes(client.hget(KEYS.replicas, replica) or b"")))


async def test_a_replica_that_stood_still_returns_with_care(server: Server) -> None:
    put_state(server, limited(8))
    async with replica("a", server.url) as a:
        async with replica("b", server.url) as b:
            await eventually(lambda: b.ledger.replicas == 2)  # and is heard of no more
        a.ledger._standing._heard_at -= 2.0
        a.arrive()
        await eventually(lambda: _entry(server, "a")[4] > 0)
        assert a.held == []


async def test_a_late_answer_holds_nobody_back_once_all_have_asked_again(server: Server, proxy: TcpProxy) -> None:
    """It made a replica go alone for a moment; held back for two seconds, its P0 saw P2 go before it elsewhere."""
    put_state(server, limited(4))
    async with replica("a", url(proxy)) as a, replica("b", server.url) as b:
        a.arrive()
        await a.until(held=1)
        for _ in range(3):
            b.arrive()
        await b.until(held=3)
        await eventually(lambda: a.ledger.replicas == 2)
        before = len(a.calls)
        proxy.delay_s = 0.1
        a.arrive()
        a.end()
        await a.until(held=1)  # alone
        proxy.delay_s = 0.0
        a.arrive(P0)
        b.arrive(P2)
        await eventually(lambda: "late" in a.calls[before:] and a.calls[-3:] == ["ok"] * 3)
        b.end()
        await a.until(held=2, within_s=0.7)
        assert b.held == [P1, P1]


async def test_a_cut_line_is_found_again_and_the_limit_still_holds(server: Server, proxy: TcpProxy) -> None:
    put_state(server, limited(4))
    async with replica("a", url(proxy)) as a, replica("b", server.url) as b:
        for _ in range(3):
            a.arrive()
        await a.until(held=3)
        await eventually(lambda: a.ledger.replicas == 2)
        await proxy.cut()
        await eventually(lambda: a.ledger.cut_off)
        a.end()
        a.arrive()
        await asyncio.sleep(0)
        assert len(a.held) == 2, "above its share of 1.8 it takes nobody in"
        await proxy.start()
        await eventually(lambda: not a.ledger.cut_off)
        for _ in range(4):
            b.arrive()
        await eventually(lambda: len(a.held) + len(b.held) == 4)
        await asyncio.sleep(0.1)
        assert len(a.held) + len(b.held) == 4


async def test_the_wakes_line_cut_waiters_ask_again_by_themselves(server: Server) -> None:
    put_state(server, limited(1))
    async with replica("a", server.url) as a, replica("b", server.url) as b:
        a.arrive()
        await a.until(held=1)
        b.arrive()
        await eventually(lambda: "b" in _heard(server))
        with server.client() as client:
            client.client_kill_filter(_type="pubsub")
        a.end()
        await b.until(held=1, within_s=0.5)


async def test_a_call_given_up_leaves_no_answer_for_the_next(server: Server, proxy: TcpProxy) -> None:
    echo = Script.__new__(Script)
    echo.text, echo.sha = "return ARGV[1]", "0" * 40
    link = Link(url(proxy))
    try:
        assert await run(link, echo, ("k",), ("first",), within_s=1) == b"first"
        proxy.delay_s = 0.05
        for i in range(3):
            with pytest.raises(StateUnavailable) as error:
                await run(link, echo, ("k",), (f"lost {i}",), within_s=0.02)
            assert error.value.kind == "timeout"
        proxy.delay_s = 0.0
        assert [await run(link, echo, ("k",), (f"{i}",), within_s=1) for i in range(20)] == [
            b"%d" % i for i in range(20)
        ]
    finally:
        await link.close()


async def test_scripts_and_everything_else_flushed_are_loaded_and_told_again(server: Server) -> None:
    put_state(server, limited(4))
    async with replica("a", server.url) as a:
        a.arrive()
        await a.until(held=1)
        with server.client() as client:
            client.script_flush()
            client.flushall()
        put_state(server, limited(4))
        a.arrive()
        await a.until(held=2)
        assert set(a.calls) == {"ok"}


async def test_a_lost_leader_is_replaced_within_a_second_and_two_never_lead(server: Server) -> None:
    async with replica("a", server.url, may_lead=True) as a:
        await asyncio.wait_for(a.shared.in_charge.wait(), 1)
        a.shared.publish(limited(3))
        async with replica("b", server.url, may_lead=True) as b:
            await eventually(lambda: b.ledger.state.limits == limited(3).limits)
            assert not b.shared.leading
            lead = a.shared.lead
            assert lead is not None
            lead._until = -1.0  # it stands still: no renewal, no farewell
            lead._call = asyncio.Event().wait  # type: ignore[assignment, method-assign]
            start = b.clock.now()
            await asyncio.wait_for(b.shared.in_charge.wait(), 2)
            assert b.clock.now() - start <= 1.0
            b.shared.publish(limited(5))
            await eventually(lambda: a.ledger.state.limits == limited(5).limits)


async def test_the_leader_is_told_one_mean_per_report_of_a_replica(server: Server) -> None:
    async with replica("a", server.url, may_lead=True) as a, replica("b", server.url) as b:
        here, there = Finishing(), Finishing()
        a.shared.tells(here)
        b.shared.tells(there)
        await asyncio.wait_for(a.shared.in_charge.wait(), 1)
        lead = a.shared.lead
        assert lead is not None
        await eventually(lambda: len(lead.counters) == 2)
        here.traffic.finished(Latency(5.0))
        for ttft_s in (1.0, 3.0):
            there.traffic.finished(Latency(4.0, ttft_s))
        taken: list[Latency] = []

        def both_told() -> bool:
            taken.extend(a.shared.take_latencies())
            return len(taken) >= 2

        await eventually(both_told)
    assert sorted(taken, key=lambda latency: latency.duration_s) == [Latency(4.0, 2.0), Latency(5.0)]
    assert b.shared.take_latencies() == (Latency(4.0, 1.0), Latency(4.0, 3.0)), "who does not lead goes by its own"


class Finishing:
    """A replica's traffic."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    def demand(self, now: float) -> Demand:
        return self.traffic.demand(now, (NOTHING,) * 3, (NOTHING,) * 3, paced=False)

    def take_latencies(self) -> tuple[Latency, ...]:
        return self.traffic.take_latencies()

    @property
    def finished(self) -> Finished:
        return self.traffic.total


async def test_replicas_that_go_by_different_policies_hear_of_it(server: Server) -> None:
    async with replica("a", server.url) as a, replica("b", server.url) as b:
        a.ledger.goes_by("one")
        b.ledger.goes_by("two")
        await eventually(lambda: a.shared.snapshot().differing == b.shared.snapshot().differing == 1)
        b.ledger.goes_by("one")
        await eventually(lambda: a.shared.snapshot().differing == b.shared.snapshot().differing == 0)


async def test_an_idle_replica_makes_few_calls(server: Server) -> None:
    put_state(server, limited(4))
    async with replica("a", server.url, may_lead=True) as a:
        await asyncio.wait_for(a.shared.in_charge.wait(), 1)
        a.shared.publish(limited(4))
        with server.client() as client:
            before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            await asyncio.sleep(1)
            after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before <= 6


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [("replicaof", "127.0.0.1 1", "readonly"), ("requirepass", "secret", "auth")],
)
async def test_what_the_store_says_against_it_is_one_error(tmp_path: Path, option: str, value: str, kind: str) -> None:
    with valkey.running(tmp_path) as server:
        with server.client() as client:
            client.config_set(option, value) if option == "requirepass" else client.replicaof(*value.split())
        link = Link(server.url)
        write = Script.__new__(Script)
        write.text, write.sha = "return redis.call('SET', KEYS[1], 1)", "0" * 40
        with pytest.raises(StateUnavailable) as error:
            await run(link, write, ("k",), (), within_s=1)
        await link.close()
    assert error.value.kind == kind
