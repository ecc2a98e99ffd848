"""An upstream that streams: a first event at once, the last one after a while. Much cheaper than an engine.

python -m bench.engine HOST PORT SECONDS
"""

from __future__ import annotations

import asyncio
import re
import sys

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}\n\n'
_DONE = b"data: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_FIRST = _HEAD + _chunk(_EVENT)
_LAST = _chunk(_EVENT) + _chunk(_DONE) + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """One connection; answers requests one after the other, as Envoy sends them."""

    def __init__(self, stream_s: float) -> None:
        self._stream_s = stream_s
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._last: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._last is not None:
            self._last.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        head = self._received.find(_HEAD_END)
        if head < 0:
            return
        length = _LENGTH.search(self._received, 0, head)
        if len(self._received) < head + len(_HEAD_END) + (int(length[1]) if length else 0):
            return
        self._received = b""
        self._transport.write(_FIRST)
        self._last = asyncio.get_running_loop().call_later(self._stream_s, self._transport.write, _LAST)


async def main(host: str, port: str, seconds: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(float(seconds)), host, int(port), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
