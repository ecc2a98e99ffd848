"""Calls to a real server: written where they are made, heard where they are read, and what a connection may do meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from extproc.clock import LoopClock
from extproc.errors import StateUnavailable
from extproc.model import NOTHING, PoolState
from extproc.ports import Ask, Verdicts
from extproc.state.client import CONNECT_S, client_of
from extproc.state.link import Link, run
from extproc.state.pipe import Pipe
from extproc.state.redis import RedisState
from extproc.state.scripts import Script
from extproc.state.trouble import kind_of
from tests.support import valkey
from tests.support.shared import Calls
from tests.support.tcp_proxy import tcp_proxy
from tests.support.valkey import Server

MOST_OPENED = 250
"""Of 500 calls: how soon one finds a connection that another has done with depends on who else uses the machine."""


def script(text: str) -> Script:
    made = Script.__new__(Script)
    made.text, made.sha = text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return made


ECHO = script("return ARGV[1]")
SLOW = script("for i = 1, 3000000 do end return 1")
PUT = script("return redis.call('SET', KEYS[1], ARGV[1])")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with valkey.running(tmp_path_factory.mktemp("v"), port=valkey.free_port()) as running:
        yield running


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    """One that has a connection already, to a server that knows the scripts."""
    made = Link(server.url)
    for known in (ECHO, PUT):
        await run(made, known, ("k",), ("first",), within_s=1)
    yield made
    await made.close()


async def test_a_call_is_written_before_the_loop_turns(server: Server, link: Link) -> None:
    link.call(PUT, ("written",), ("at once",), within_s=1, heard=lambda _: None)
    with server.client() as client:
        valkey.until(lambda: client.get("written") == b"at once", within_s=1)  # nothing of ours runs meanwhile


async def test_an_answer_is_heard_in_the_callback_that_reads_it(server: Server, link: Link) -> None:
    heard: list[object] = []
    link.call(PUT, ("read",), ("at once",), within_s=1, heard=heard.append)
    with server.client() as client:
        valkey.until(lambda: client.get("read") == b"at once", within_s=1)
    time.sleep(0.02)  # noqa: ASYNC251 - the loop stands still: the answer lies there
    assert heard == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard == [b"OK"]


async def test_what_is_given_up_is_never_heard(link: Link) -> None:
    heard: list[object] = []
    give_up = link.call(ECHO, ("k",), ("given up",), within_s=0.1, heard=heard.append)
    give_up()
    assert await run(link, ECHO, ("k",), ("next",), within_s=1) == b"next"
    await asyncio.sleep(0.15)
    assert heard == []


async def test_a_connection_that_the_server_closed_meanwhile_costs_no_call(server: Server, link: Link) -> None:
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await asyncio.sleep(0.05)
    assert await run(link, ECHO, ("k",), ("next",), within_s=1) == b"next"


async def test_a_connection_whose_end_was_read_a_moment_ago_costs_no_call(server: Server, link: Link) -> None:
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.05)  # noqa: ASYNC251 - the end lies there
    for _ in range(2):
        await asyncio.sleep(0)  # it is read, and the transport has yet to say so
    assert await run(link, ECHO, ("k",), ("next",), within_s=1) == b"next"


async def test_a_connection_that_was_in_use_while_the_others_were_forgotten_is_not_used_again(
    server: Server, tmp_path: Path
) -> None:
    """It may lead to a server that has lost its role, or a slot."""
    with valkey.running(tmp_path, port=valkey.free_port()) as new:
        async with tcp_proxy(server.port) as proxy:
            link = Link(f"redis://127.0.0.1:{proxy.port}")
            assert await run(link, ECHO, ("k",), ("first",), within_s=1) == b"first"
            in_use = asyncio.ensure_future(run(link, SLOW, ("k",), (), within_s=1))
            await asyncio.sleep(0)
            proxy.target_port = new.port
            with pytest.raises(StateUnavailable):
                await run(link, script("return nothing.at_all"), ("k",), (), within_s=1)
            await in_use
            await run(link, PUT, ("where",), ("new",), within_s=1)
            with new.client() as client:
                assert client.get("where") == b"new"
            await link.close()


async def test_many_calls_at_once_open_few_connections(server: Server, link: Link) -> None:
    calls = (run(link, ECHO, ("k",), (str(number),), within_s=5) for number in range(500))
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(500)]
    with server.client() as client:
        assert len(client.client_list()) <= MOST_OPENED


async def test_a_script_that_goes_wrong_is_an_error_and_the_next_call_is_none(link: Link) -> None:
    with pytest.raises(StateUnavailable) as error:
        await run(link, script("return nothing.at_all"), ("k",), (), within_s=1)
    assert error.value.kind == "error"
    assert "nothing" in str(error.value)
    assert await run(link, ECHO, ("k",), ("next",), within_s=1) == b"next"


async def test_what_a_server_says_of_its_own_accord_is_no_reply(server: Server) -> None:
    client = client_of(f"{server.url}?protocol=3")
    assert isinstance(client, Redis)
    pipe = await Pipe.opened(client.connection_pool.make_connection())  # type: ignore[no-untyped-call]
    try:
        assert await said(pipe, "CLIENT", "TRACKING", "ON") == b"OK"
        assert await said(pipe, "GET", "tracked") is None
        with server.client() as other:
            other.set("tracked", "changed")
        await asyncio.sleep(0.05)
        assert pipe.open
        assert await said(pipe, "GET", "tracked") == b"changed"
    finally:
        pipe.close()
        await client.aclose()


async def said(pipe: Pipe, *words: str) -> object:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    pipe.send(*words, heard=answer.set_result)
    return await asyncio.wait_for(answer, 1)


class Bare:
    """As much of a client's connection as a pipe takes, without a greeting."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        _, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def pack_command(self, *words: str) -> list[bytes]:
        return [word.encode() for word in words]


@asynccontextmanager
async def pipe_to(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Pipe]:
    """To a server that answers so, whatever it is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = cast("AbstractConnection", Bare(server.sockets[0].getsockname()[1]))
    pipe = await Pipe.opened(connection)
    try:
        yield pipe
    finally:
        pipe.close()
        server.close()


@pytest.mark.parametrize(
    ("bytes_sent", "error"),
    [(b"?!\r\n", hiredis.ProtocolError), (b"", ConnectionError), (b"$5\r\nab", ConnectionError)],
)
async def test_no_reply_is_an_error_that_is_heard(bytes_sent: bytes, error: type[Exception]) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(bytes_sent)

    async with pipe_to(answer) as pipe:
        assert isinstance(await said(pipe, "x"), error)
        assert not pipe.open


async def test_a_reply_that_nobody_waits_for_ends_the_connection() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b":1\r\n:2\r\n")

    async with pipe_to(answer) as pipe:
        assert isinstance(await said(pipe, "x"), ConnectionError), "which of them is the answer?"
        assert not pipe.open


async def test_a_bug_in_what_hears_an_answer_ends_the_pool_as_any_bug_in_its_loops_does(server: Server) -> None:
    clock = LoopClock(asyncio.get_running_loop())
    state = RedisState(server.url, "bug", process="a", clock=clock, watch=Calls(), may_lead=False)
    pool = state.pool("main", PoolState(limits=(NOTHING,) * 3))
    running = asyncio.ensure_future(pool.run())

    def reply(_: Verdicts) -> Any:
        raise LookupError("a bug")

    pool.ledger.ask(Ask((NOTHING,) * 3, ()), reply)
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.wait_for(running, 2)
    assert group.group_contains(LookupError, match="a bug")
    await state.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MOVED 3999 127.0.0.1:6381", "cluster"),
        ("ASK 3999 127.0.0.1:6381", "cluster"),
        ("CLUSTERDOWN The cluster is down", "cluster"),
        ("LOADING the dataset is in memory", "loading"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
        ("ERR Error running script: -READONLY You can't write against a read only replica.", "readonly"),
        ("NOSCRIPT No matching script.", "noscript"),
        ("BUSY Redis is busy running a script.", "busy"),
        ("ERR unknown command", "error"),
    ],
)
def test_the_servers_own_word_is_the_kind(text: str, kind: str) -> None:
    assert kind_of(hiredis.ReplyError(text)) == kind


async def test_a_server_that_stands_still_is_not_listened_to_for_ever(tmp_path: Path) -> None:
    """Its kernel takes the connection, and nobody reads what is said on it."""
    with valkey.running(tmp_path, port=valkey.free_port()) as server:
        made = Link(server.url)
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StateUnavailable) as raised:
                await asyncio.wait_for(made.listen("wakes", lambda _: None), CONNECT_S + 1)
        finally:
            server.process.send_signal(signal.SIGCONT)
            await made.close()
        assert raised.value.kind == "timeout"


async def test_silence_after_a_subscription_is_no_trouble(server: Server) -> None:
    made, heard = Link(server.url), asyncio.Event()
    listening = asyncio.ensure_future(made.listen("wakes", lambda _: heard.set()))
    await asyncio.sleep(CONNECT_S + 0.2)
    with server.client() as client:
        client.publish("wakes", "now")
    await asyncio.wait_for(heard.wait(), 1)
    listening.cancel()
    await asyncio.wait([listening])
    await made.close()
