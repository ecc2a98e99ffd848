"""TLS in front of a server that speaks none, as a sidecar or a cloud's endpoint does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.certificates import Certificates


@asynccontextmanager
async def tls_proxy(target_port: int, certificates: Certificates) -> AsyncIterator[int]:
    """The port on which it listens."""
    open_streams: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target_port)
            open_streams.update((writer, there_writer))
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, there_writer))
                both.create_task(_pass_on(there_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.server_context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_streams:
            writer.transport.abort()
        await server.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
