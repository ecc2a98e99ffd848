"""A TCP proxy between us and a server: delays what passes, or cuts everything off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """`delay_s` each way; `target_port` may change, for connections to come.

    `cut()`: open connections end, new ones are refused; `silence()`: bytes go nowhere."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self.delay_s = 0.0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def silence(self) -> None:
        self._passing.clear()

    def speak(self) -> None:
        self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers |= {writer, there_writer}
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pipe(reader, there_writer))
                    both.create_task(self._pipe(there_reader, writer))
            finally:
                self._writers -= {writer, there_writer}

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Everything after a delay, in order. The delay of what follows runs meanwhile, as on a long line."""
        loop = asyncio.get_running_loop()
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await line.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                await self._passing.wait()
                if not data:
                    writer.close()
                    return
                writer.write(data)

        async def collect() -> None:
            data = b"-"
            while data:
                try:
                    data = await reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                await line.put((loop.time() + self.delay_s, data))

        async with asyncio.TaskGroup() as pair:
            pair.create_task(deliver())
            pair.create_task(collect())


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(target_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        proxy.speak()
        await proxy.cut()
