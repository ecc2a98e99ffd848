"""Durations, sizes, priorities and addresses, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config.units import (
    BadValue,
    is_host_port,
    read_bytes,
    read_priority,
    read_seconds,
    write_bytes,
    write_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("100ms", 0.1),
        ("8s", 8.0),
        ("1.5m", 90.0),
        ("1h", 3600.0),
        ("3", 3.0),
        ("0.5", 0.5),
        (" 8 s ", 8.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "fast", "-1s", "+1s", "1:30", "1e3", "nan", "inf", "1d", "1 000", "1,5s", "٣s", "1S"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadValue, match="a duration such as"):
        read_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512KiB", 524288), ("1MiB", 1 << 20), ("1MB", 10**6), ("1.5KiB", 1536), ("2GiB", 2 << 30), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5", "0.1KiB", "1mib", "1TiB", "many"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadValue, match="a size such as"):
        read_bytes(text)


@pytest.mark.parametrize("text", ["", "3", "-1", "p0", "P3", "high", "0.0", "P", "realtime-interactive"])
def test_what_is_no_priority(text: str) -> None:
    with pytest.raises(BadValue, match="a priority"):
        read_priority(text)


@given(st.floats(min_value=0.001, max_value=1e9))
def test_every_duration_reads_back_exactly(seconds: float) -> None:
    assert read_seconds(write_seconds(seconds)) == seconds


@given(st.integers(min_value=0, max_value=1 << 40))
def test_every_size_reads_back_exactly(size: int) -> None:
    assert read_bytes(write_bytes(size)) == size


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("10.0.0.1:8000", True),
        ("engine-1.svc.local:80", True),
        ("h_1:80", True),
        ("[::1]:8000", True),
        ("engine.:80", True),
        ("[1:2]:80", False),
        ("[10.0.0.1]:80", False),
        ("::1:8000", False),
        ("host", False),
        ("host:", False),
        (":8000", False),
        ("host:0", False),
        ("host:65536", False),
        ("http://host:80", False),
        ("host:80/metrics", False),
        ("-host:80", False),
        ("ho st:80", False),
        ("host:٨", False),
    ],
)
def test_addresses(text: str, right: bool) -> None:
    assert is_host_port(text) is right
