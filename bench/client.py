"""Clients for the soak: each sends one request on a connection of its own and stays, or leaves at a chosen moment."""

from __future__ import annotations

import asyncio
from enum import StrEnum

_HEAD_END = b"\r\n\r\n"
_CHUNK = 1 << 16
_PATIENCE_S = 30.0


class Leaving(StrEnum):
    """When a client leaves."""

    NEVER = "never"
    UPLOADING = "uploading"
    """With half of its body sent: before there can be a verdict."""
    ASKED = "asked"
    """As soon as its request is written: before the verdict, or while it waits for one."""
    QUEUED = "queued"
    """Some milliseconds later: while it waits, where there is a queue."""
    STREAMING = "streaming"
    """After the first bytes of the answer's body."""


QUEUED_S = 0.03


async def call(host: str, port: int, request: bytes, leaving: Leaving = Leaving.NEVER) -> str:
    """What became of it: the status of a whole answer, or `left`, `cut` (the gateway hung up), `late` (no end in time)."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await _exchange(reader, writer, request, leaving)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return "late"
    except (OSError, asyncio.IncompleteReadError):
        return "cut"


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, leaving: Leaving
) -> str:
    if leaving is Leaving.UPLOADING:
        writer.write(request[: len(request) - 200])
        await asyncio.sleep(0)
        return "left"
    writer.write(request)
    if leaving is Leaving.ASKED:
        await writer.drain()
        return "left"
    if leaving is Leaving.QUEUED:
        await asyncio.sleep(QUEUED_S)
        return "left"
    head = await reader.readuntil(_HEAD_END)
    if leaving is Leaving.STREAMING:
        await reader.read(_CHUNK)
        return "left"
    body = b""
    while data := await reader.read(_CHUNK):
        body += data
    status = head.split(b" ", 2)[1].decode()
    whole = b"chunked" not in head.lower() or body.endswith(b"0" + _HEAD_END)
    return status if whole else "cut"
