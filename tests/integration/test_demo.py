"""`extproc demo`, short: the whole stack, the promised JSON, and nothing left behind however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]


def _heeds_interrupts() -> None:
    """Tests that a shell runs in its background have SIGINT ignored, and hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@asynccontextmanager
async def demo(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", "demo", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        preexec_fn=_heeds_interrupts,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def children_of(process: asyncio.subprocess.Process) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()]


def all_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def read_until(process: asyncio.subprocess.Process, mark: str) -> str:
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(60):
        while mark not in text:
            line = (await process.stdout.readline()).decode()
            assert line, f"it ended before it said {mark!r}:\n{text}"
            text += line
    return text


async def test_the_demo_measures_both_runs_keeps_the_stack_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    async with demo("--seconds", "1", "--json", str(file), "--keep") as process:
        said = await read_until(process, '"role": "user"')
        assert "\x1b" not in said
        result = json.loads(file.read_text("utf-8"))
        children = children_of(process)
        assert len(children) == 4
        gateway = next(line.split()[1] for line in said.splitlines() if line.startswith("  gateway"))
        async with aiohttp.ClientSession() as http:
            request = {"model": "llama-3-8b", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
            async with http.post(gateway, json=request, headers={"x-priority": "P0"}) as response:
                assert (await response.json())["usage"]["completion_tokens"] <= 3
        process.send_signal(signal.SIGINT)
        await eventually(lambda: all_gone(children))
        assert await process.wait() == 0
    check(result)


def check(result: dict[str, dict[str, dict[str, dict[str, dict[str, int]]]]]) -> None:
    """A window of 1 s says little of quality; that nobody is lost or lied to must hold in any window."""
    unprotected, protected = (result["runs"][name]["classes"] for name in ("unprotected", "protected"))
    for before, after in zip(unprotected.values(), protected.values(), strict=True):
        assert before["sent"] == after["sent"] == after["completed"] + after["rejected"]
        assert after["failed"] == before["rejected"] == 0
    assert protected["P0"]["within_target"] >= unprotected["P0"]["within_target"]
    assert protected["P2"]["rejected"] > 0
    waits = result["runs"]["protected"]["retry_after_s"]
    assert 1 <= waits["min"] < waits["max"] <= 60  # type: ignore[operator]


async def test_an_interrupted_demo_ends_all_its_children(tmp_path: Path) -> None:
    async with demo("--seconds", "20") as process:
        await read_until(process, "unprotected:")
        children = children_of(process)
        assert len(children) == 3
        process.send_signal(signal.SIGINT)
        await eventually(lambda: all_gone(children))
        assert await process.wait() == 130


async def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    async with demo("--json", str(tmp_path / "missing" / "demo.json")) as process:
        output, _ = await process.communicate()
        assert process.returncode == 1
        assert "the numbers cannot be written" in output.decode()
