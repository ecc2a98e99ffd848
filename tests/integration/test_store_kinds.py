"""The kinds of store: a cluster of three, and a primary with a replica behind Sentinel that fails over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError

from extproc.errors import StateUnavailable
from extproc.state.client import CONNECT_S, BadUrl, client_of
from extproc.state.link import Link, run
from extproc.state.scripts import Script
from tests.support import valkey
from tests.support.cluster import joined
from tests.support.eventually import eventually
from tests.support.pools import limited
from tests.support.shared import replica
from tests.support.valkey import Server

OF_THE_FIRST, OF_THE_LAST = "{b}", "{a}"
"""Keys whose slots the first and the third node of the cluster have."""
ECHO = Script.__new__(Script)
ECHO.text, ECHO.sha = "return ARGV[1]", "0" * 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with joined(tmp_path_factory.mktemp("c")) as nodes:
        yield nodes


async def test_replicas_share_a_pool_over_a_cluster_and_wake_each_other_from_any_node(cluster: list[Server]) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    async with replica("a", url, may_lead=True) as a, replica("b", url) as b:
        await asyncio.wait_for(a.shared.in_charge.wait(), 3)
        a.shared.publish(limited(2))
        await eventually(lambda: b.ledger.state.limits == limited(2).limits)
        a.arrive()
        a.arrive()
        await a.until(held=2, within_s=4)  # a new generation: for a second nobody comes on top
        b.arrive()
        await asyncio.sleep(0.05)
        a.end()
        await b.until(held=1, within_s=0.5)


@contextmanager
def silent(server: Server) -> Iterator[None]:
    """For less time than makes the others give it up."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


async def test_a_silent_node_of_a_cluster_keeps_nobody_from_the_others(cluster: list[Server]) -> None:
    """Which node has what was known only once the first one had told its commands."""
    link = Link(f"redis+cluster://127.0.0.1:{cluster[1].port}")
    with silent(cluster[0]):
        assert await asyncio.wait_for(run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1), 1) == b"x"
    await link.close()


async def test_a_node_that_fails_costs_another_neither_its_connections_nor_a_search(cluster: list[Server]) -> None:
    link = Link(f"redis+cluster://127.0.0.1:{cluster[1].port}")
    for key in (OF_THE_FIRST, OF_THE_LAST):
        await run(link, ECHO, (key,), ("x",), within_s=1)
    with cluster[2].client() as client, silent(cluster[0]):
        before = client.info("stats")["total_connections_received"]
        with pytest.raises(StateUnavailable):
            await run(link, ECHO, (OF_THE_FIRST,), ("x",), within_s=0.1)
        assert await run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1) == b"x"
        assert client.info("stats")["total_connections_received"] == before
    await link.close()


async def test_a_cluster_is_not_asked_for_its_nodes_for_ever_where_one_is_silent(cluster: list[Server]) -> None:
    link = Link(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    with silent(cluster[0]), pytest.raises(StateUnavailable, match="cannot be connected"):
        await asyncio.wait_for(run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1), CONNECT_S * 1.5)
    await link.close()


async def test_a_slot_that_moved_is_found_at_the_next_call(cluster: list[Server]) -> None:
    link = Link(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    assert await run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1) == b"x"
    try:
        _move(OF_THE_LAST, cluster, to=1)
        with pytest.raises(StateUnavailable) as error:
            await run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1)
        assert error.value.kind == "cluster"
        assert await run(link, ECHO, (OF_THE_LAST,), ("x",), within_s=1) == b"x"
    finally:
        _move(OF_THE_LAST, cluster, to=2)
        await link.close()


def _move(key: str, cluster: list[Server], *, to: int) -> None:
    """The slot, which is empty."""
    with cluster[to].client() as client:
        node_id = client.execute_command("CLUSTER", "MYID")
    for node in (cluster[to], *cluster):
        with node.client() as client:
            client.execute_command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", node_id)


async def test_a_failover_by_sentinel_keeps_the_limit(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(valkey.running(tmp_path / "p", port=valkey.free_port()))
        follower = stack.enter_context(
            valkey.running(tmp_path / "f", "--replicaof", "127.0.0.1", f"{primary.port}", port=valkey.free_port())
        )
        sentinel = stack.enter_context(valkey.sentinel(tmp_path / "s", "main", primary.port))
        await eventually(lambda: _followers(primary) == 1)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        async with replica("a", url, may_lead=True) as a, replica("b", url) as b:
            await asyncio.wait_for(a.shared.in_charge.wait(), 3)
            a.shared.publish(limited(4))
            for node in (a, b):
                node.arrive()
                node.arrive()
            await a.until(held=2, within_s=4)
            await b.until(held=2, within_s=4)
            with sentinel.client() as client:
                await eventually(lambda: _knows_follower(client), within_s=12)
                client.execute_command("SENTINEL", "FAILOVER", "main")
            await eventually(lambda: _role(follower) == "master", within_s=10)
            for node in (a, b):
                node.arrive()
            await asyncio.sleep(1.5)
            assert len(a.held) + len(b.held) == 4
            a.end()
            await eventually(lambda: len(a.held) + len(b.held) == 4 and not a.ledger.cut_off, within_s=6)


def _followers(server: Server) -> int:
    with server.client() as client:
        return int(client.info("replication")["connected_slaves"])


def _role(server: Server) -> str:
    """Empty while it changes: the server drops its clients then."""
    try:
        with server.client() as client:
            return str(client.info("replication")["role"])
    except RedisConnectionError:
        return ""


def _knows_follower(client: object) -> bool:
    return bool(client.execute_command("SENTINEL", "REPLICAS", "main"))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@host",
        "redis://:secret@host:port",
        "redis+sentinel://:secret@host",
        "redis+sentinel://:secret@host:x/main",
        "redis://:secret@host?ssl_ca_cert=/typing/error",
        "redis://:secret@host?protocol=9",
        "redis+cluster://:secret@host?no_such_option=1",
        "redis+sentinel://:secret@host/main?no_such_option=1",
        "rediss://:secret@host?ssl_ca_certs=/nowhere.pem",
        "rediss+sentinel://:secret@host/main?ssl_ca_certs=/nowhere.pem",
        "rediss+cluster://:secret@host?ssl_ca_certs=/nowhere.pem",
        "secret",
    ],
)
def test_a_url_that_is_none_is_said_without_its_password(url: str) -> None:
    with pytest.raises(BadUrl, match="--redis-url") as error:
        client_of(url)
    assert ":secret" not in str(error.value)


async def test_a_link_to_nobody_is_one_error() -> None:
    link = Link(f"redis://127.0.0.1:{valkey.free_port()}")
    with pytest.raises(StateUnavailable) as error:
        await run(link, Script("ask"), ("a", "b", "c"), (), within_s=1)
    assert error.value.kind == "connection"
    await link.close()
