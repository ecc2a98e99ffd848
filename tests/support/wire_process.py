"""The wire over the real spine in a process of its own, which a test can stop and continue.

Prints its address, then one line of JSON for each line that it reads: what it holds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from extproc.clock import LoopClock
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.server import WireServer
from tests.support.observing import Remembering
from tests.support.spine import Spine, tail_queues


class WireProcess:
    """`address` is where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def state(self) -> dict[str, Any]:
        """`running`, `waiting`, `ghosts` in slots; `ends` and `events` counted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return dict(json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def run_wire_process(*, limit: int) -> AsyncIterator[WireProcess]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(limit)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield WireProcess(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.kill()
        await process.wait()


async def main(limit: int) -> None:
    loop = asyncio.get_running_loop()
    clock, observer = LoopClock(loop), Remembering()
    spine = Spine(limit=limit, clock=clock, observer=observer, policy=tail_queues(100, timeout="60s"))
    service = ExtProcService(lambda: spine.admission, observer=observer, clock=clock, envoy=lambda: spine.policy.envoy)
    server = WireServer(service, listen="127.0.0.1:0", max_body_bytes=1 << 20)
    await server.start()
    print(server.address, flush=True)  # noqa: T201
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        state = {
            "running": spine.running,
            "waiting": spine.waiting,
            "ghosts": spine.ghosts,
            "ends": observer.ends,
            "events": observer.events,
        }
        print(json.dumps(state), flush=True)  # noqa: T201
    await server.stop(0.0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
