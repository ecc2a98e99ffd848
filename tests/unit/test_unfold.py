"""Compressed bodies: every coding unfolds, nothing raises, and no body takes more than we read."""

from __future__ import annotations

import gzip
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from time import process_time

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.unfold import Coding, codings, unfold

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"messages": [{"role": "user", "content": "hello, hello, hello"}]}'
MOST = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def zstd_of_unknown_size(data: bytes, window_log: int = 20) -> bytes:
    """As streaming clients send it: the frame does not say what it unfolds to."""
    parameter = zstd.CompressionParameter
    options = {int(parameter.window_log): window_log, int(parameter.content_size_flag): 0}
    packer = zstd.ZstdCompressor(options=options)
    return packer.compress(data) + packer.flush()


def wide_brotli(data: bytes) -> bytes:
    packed: bytes = brotli.compress(data, quality=1, lgwin=24)
    return packed


def narrow_brotli(data: bytes) -> bytes:
    packed: bytes = brotli.compress(data, quality=5)
    return packed


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP", gzip.compress),
    ("identity, gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstd.compress),
    ("zstd", zstd_of_unknown_size),
    ("br", narrow_brotli),
    ("gzip, zstd", lambda data: zstd.compress(gzip.compress(data))),
    ("identity", lambda data: data),
]


def unfolded(body: bytes, header: str, most: int = MOST) -> bytes:
    applied = codings(header)
    assert applied is not None
    return unfold(body, applied, most_bytes=most)


@pytest.mark.parametrize(("header", "pack"), PACKERS)
def test_every_coding_unfolds(header: str, pack: Callable[[bytes], bytes]) -> None:
    assert unfolded(pack(TEXT), header) == TEXT
    assert unfolded(pack(b""), header) == b""


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_several_members_are_one_body(pack: Callable[[bytes], bytes]) -> None:
    header = "gzip" if pack is gzip.compress else "zstd"
    assert unfolded(pack(TEXT[:20]) + pack(b"") + pack(TEXT[20:]), header) == TEXT


def test_zeros_after_a_gzip_body_change_nothing() -> None:
    assert unfolded(gzip.compress(TEXT) + bytes(100), "gzip") == TEXT


@pytest.mark.parametrize(
    "header", ["compress", "gzip, dcb", "aws-chunked", "gzip;q=1", "gzip, gzip, gzip, gzip", "\xff"]
)
def test_unknown_codings_and_long_chains_are_not_ours_to_undo(header: str) -> None:
    assert codings(header) is None


@pytest.mark.parametrize(("header", "pack"), [case for case in PACKERS if case[0] != "identity"])
def test_what_is_cut_off_gives_a_part_at_most(header: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(TEXT)
    for length in range(len(packed)):
        assert TEXT.startswith(unfolded(packed[:length], header))


@pytest.mark.parametrize(("header", "pack"), PACKERS[:-1])
def test_more_than_is_read_is_cut(header: str, pack: Callable[[bytes], bytes]) -> None:
    body = pack(b"x" * 5000)
    assert unfolded(body, header, most=5000) == b"x" * 5000
    assert unfolded(body, header, most=4999) == b"x" * 5000
    assert unfolded(body, header, most=100) == b"x" * 101


@given(st.lists(st.sampled_from(list(Coding)), min_size=1, max_size=3), st.binary(max_size=300), st.integers(0, 2000))
def test_no_bytes_raise(applied: list[Coding], body: bytes, most: int) -> None:
    assert len(unfold(body, tuple(applied), most_bytes=most)) <= most + 1


@given(st.sampled_from(PACKERS[:-1]), st.data())
def test_no_damage_raises(case: tuple[str, Callable[[bytes], bytes]], data: st.DataObject) -> None:
    header, pack = case
    packed = bytearray(pack(TEXT * 3))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    assert len(unfolded(bytes(packed), header)) <= MOST + 1


ZEROS = bytes(64 << 20)
BOMBS = {
    "gzip": ("gzip", gzip.compress(ZEROS, 1)),
    "deflate": ("deflate", zlib.compress(ZEROS, 1)),
    "deflate, bare": ("deflate", raw_deflate(ZEROS)),
    "zstd": ("zstd", zstd.compress(ZEROS)),
    "zstd, window of 128 MiB": ("zstd", zstd_of_unknown_size(ZEROS, 27)),
    "brotli": ("br", narrow_brotli(ZEROS)),
    "brotli, window of 16 MiB": ("br", wide_brotli(ZEROS)),
    "three times": ("gzip, gzip, gzip", gzip.compress(gzip.compress(gzip.compress(ZEROS, 1)))),
    "empty gzip members": ("gzip", (gzip.compress(b"") * 60_000)[:MOST]),
    "empty zstd frames": ("zstd", (zstd.compress(b"") * 120_000)[:MOST]),
    "skippable zstd frames": ("zstd", struct.pack("<II", 0x184D2A50, 0) * (MOST // 8)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_bounded_in_time_and_memory(name: str) -> None:
    """Milliseconds where all of it would take 100 ms and more; the bound leaves room for a slow machine."""
    header, body = BOMBS[name]
    tracemalloc.start()
    try:
        assert len(unfolded(body, header)) <= MOST + 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MOST
    times = []
    for _ in range(3):
        start = process_time()
        unfolded(body, header)
        times.append(process_time() - start)
    assert min(times) < 0.08
