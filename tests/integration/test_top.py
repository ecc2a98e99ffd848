"""`extproc top` against a real admin port, as an operator types it and as a script does."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console

from extproc.admin.http import AdminServer
from extproc.admin.metrics import Metrics
from extproc.admin.top import NoAnswer, top
from extproc.sim.stack import free_port
from tests.support.eventually import eventually
from tests.support.scripted_server import scripted_server
from tests.support.snapshots import SERVICE, GivenSource


@asynccontextmanager
async def admin(source: GivenSource, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = AdminServer(listen=listen, source=source, metrics=Metrics(["llama"]), policy_view=dict)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def extproc_top(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", "top", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    return process.returncode, out.decode(), err.decode()


async def answer_of(status: str, body: str) -> str:
    """What `top` says of a server that always answers so."""

    async def always(_head: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()

    async with scripted_server(always) as port:
        with pytest.raises(NoAnswer) as raised:
            await top(f"127.0.0.1:{port}", once=True, console=Console(file=io.StringIO()))
    return str(raised.value)


async def test_once_prints_a_plain_page_and_ends() -> None:
    async with admin(GivenSource()) as address:
        code, out, err = await extproc_top("--once", "--admin", f"http://{address}/")
    assert (code, err) == (0, "")
    assert "agent-workflow" in out
    assert "\x1b" not in out, "no colours and no cursor in a pipe"
    assert max(map(len, out.splitlines())) > 100, "and no narrow terminal"


@pytest.mark.parametrize("once", [["--once"], []], ids=["once", "live"])
async def test_nobody_there_says_what_to_look_at_and_ends_with_1(once: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    code, out, err = await extproc_top("--admin", address, *once)
    assert (code, out) == (1, "")
    assert err == (f"http://{address}/state: Connection refused; is extproc serve running, with this --admin-listen?\n")


async def test_an_address_that_is_none_is_named() -> None:
    for wrong in ("ht tp://x", "ftp://127.0.0.1", "127.0.0.1:99999"):
        with pytest.raises(NoAnswer, match="--admin: expected a URL such as"):
            await top(wrong, once=True, console=Console(file=io.StringIO()))


async def test_other_servers_are_told_apart() -> None:
    assert "status 404, not the state of an extproc" in await answer_of("404 Not Found", "not here")
    assert "status 200, not the state of an extproc" in await answer_of("200 OK", '{"some": "json"}')
    assert "cannot be read: ValueError" in await answer_of(
        "503 Service Unavailable", json.dumps({"ready": False, "error": "the state cannot be read: ValueError"})
    )
    assert "has no 'warnings'; that is another version" in await answer_of(
        "200 OK",
        json.dumps(
            {
                "pools": [],
                "version": "9",
                "uptime_s": 1,
                "draining": False,
                "loop_lag_s": 0,
                "wire": {"serving": True, "address": "", "streams": 0},
                "policy": {"hash": ""},
            }
        ),
    )


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
async def test_it_follows_the_service_through_a_restart(terminal: bool) -> None:
    source, out = GivenSource(), io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=140)
    async with admin(source) as address:
        watching = asyncio.create_task(top(address, once=False, console=console, refresh_s=0.01))
        await eventually(lambda: "5 streams" in out.getvalue())
        source.state = replace(SERVICE, at=101.0, wire=replace(SERVICE.wire, streams=77))
        await eventually(lambda: "77 streams" in out.getvalue() and "adm/s" in out.getvalue())
    await eventually(lambda: "Connection refused" in out.getvalue())
    assert not watching.done()
    source.state = replace(SERVICE, at=41.0, wire=replace(SERVICE.wire, streams=88))
    async with admin(source, address):
        await eventually(lambda: "88 streams" in out.getvalue())
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert watching.cancelled()
    assert ("\x1b[?1049h" in out.getvalue()) is terminal
    assert out.getvalue().count("\x1b[?1049l") == terminal, "the terminal is given back"
