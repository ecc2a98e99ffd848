"""Compressed request bodies, unfolded as far as they are read. Pure: bytes in, bytes out, bounded in time and memory.

A body of a kilobyte may unfold to gigabytes, so every decoder stops at the size we read, and window sizes and the
number of members are bounded. Nothing here judges a body: what cannot be unfolded is the engine's to refuse.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MOST_CODINGS = 3
"""Each is a pass over the body; more than two have not been seen in the wild."""
_MOST_MEMBERS = 32
"""Members of one gzip body, frames of one zstd body. Each may be empty and costs a decoder: 1 MiB holds 50,000 of them."""
_ZSTD_WINDOW_LOG = 23
"""8 MiB, what RFC 9659 allows for HTTP. A frame may ask for gigabytes."""
_WIDE_BROTLI_WINDOWS = (0b1101, 0b1111)
"""The low bits of a body with a window of 8 or 16 MiB (RFC 7932, 9.1). The decoder fills its window before it gives us
anything: 16 MiB out of 200 bytes take 45 ms, where the 4 MiB of every encoder's default take 8 ms."""


class Coding(StrEnum):
    """Content codings that we can undo."""

    GZIP = "gzip"
    DEFLATE = "deflate"
    ZSTD = "zstd"
    BR = "br"


_NAMES = {str(coding): coding for coding in Coding} | {"x-gzip": Coding.GZIP}


class _Decoder(Protocol):
    """What zlib and zstd have in common. One decoder reads one member."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def codings(content_encoding: str) -> tuple[Coding, ...] | None:
    """The codings of a `content-encoding` header in the order in which they were applied; None: not ours to undo."""
    if not content_encoding:
        return ()
    names = [name for part in content_encoding.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    known = tuple(_NAMES[name] for name in names if name in _NAMES)
    return known if len(known) == len(names) <= _MOST_CODINGS else None


def unfold(body: bytes, applied: tuple[Coding, ...], *, most_bytes: int) -> bytes:
    """What the body unfolds to, cut one byte after `most_bytes`, or where it cannot be read any further. Never raises."""
    for coding in reversed(applied):
        body = _UNFOLDERS[coding](body, most_bytes + 1)
    return body


def _gzip(body: bytes, most: int) -> bytes:
    return _members(lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), body, most)


def _zstd(body: bytes, most: int) -> bytes:
    options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG}
    return _members(lambda: zstd.ZstdDecompressor(options=options), body, most)


def _deflate(body: bytes, most: int) -> bytes:
    """RFC 9110 means zlib's format; some clients send the bare stream."""
    try:
        return zlib.decompressobj().decompress(body, most)
    except zlib.error:
        return _members(lambda: zlib.decompressobj(-zlib.MAX_WBITS), body, most)


def _brotli(body: bytes, most: int) -> bytes:
    if body and body[0] & 0b1111 in _WIDE_BROTLI_WINDOWS:
        return b""
    try:
        read: bytes = brotli.Decompressor().process(body, output_buffer_limit=most)
    except brotli.error:
        return b""
    return read[:most]


def _members(start: Callable[[], _Decoder], body: bytes, most: int) -> bytes:
    """Gzip and zstd bodies may be several, one after the other."""
    read = b""
    for _ in range(_MOST_MEMBERS):
        decoder = start()
        try:
            read += decoder.decompress(body, most - len(read))
        except (zlib.error, zstd.ZstdError):
            break
        body = decoder.unused_data
        if not body or len(read) >= most:
            break
    return read


_UNFOLDERS: dict[Coding, Callable[[bytes, int], bytes]] = {
    Coding.GZIP: _gzip,
    Coding.DEFLATE: _deflate,
    Coding.ZSTD: _zstd,
    Coding.BR: _brotli,
}
