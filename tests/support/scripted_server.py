"""An HTTP server that answers exactly what a test scripts, bytes, pauses and cuts included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]
"""Called with the request's head and body; writes the answer. When it returns, the connection is closed."""


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[int]:
    """The port on which `script` answers; on leaving, all connections have been served or dropped."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length:" in line), 0
            )
            await script(head, await reader.readexactly(length), writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
