"""Recorded pages of real engines, read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from extproc.engines.vllm import Vllm
from extproc.errors import BadMetrics

SAMPLES = Path(__file__).parent / "samples"


def _text(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def test_vllm_loaded() -> None:
    reading = Vllm().read(_text("vllm-0.32.0-loaded.txt"))
    assert reading.kv_usage == 0.9763779527559056
    assert reading.kv_capacity_tokens == 4096
    assert (reading.running, reading.waiting) == (11, 20)
    assert (reading.preemptions, reading.prompt_tokens, reading.generation_tokens) == (16, 1995, 13085)
    assert reading.ttft is not None
    assert (reading.ttft.count, len(reading.ttft.bounds)) == (52, 23)
    assert reading.tpot is not None
    assert reading.tpot.mean == pytest.approx(69.42355126700011 / 13033)
    assert reading.output is not None
    assert reading.output.mean == pytest.approx(9512 / 36)
    assert reading.others


def test_vllm_idle() -> None:
    reading = Vllm().read(_text("vllm-0.32.0-idle.txt"))
    assert (reading.kv_usage, reading.running, reading.waiting) == (0.0, 0, 0)
    assert reading.kv_capacity_tokens == 4096


@pytest.mark.parametrize("name", ["vllm-0.32.0-idle.txt", "vllm-0.32.0-loaded.txt"])
def test_line_ends_and_format_change_nothing(name: str) -> None:
    vllm = Vllm()
    text = _text(name)
    reading = vllm.read(text, "text/plain; version=0.0.4")
    assert vllm.read(text.replace("\n", "\r\n")) == reading
    assert vllm.read(text + "# EOF\n", "APPLICATION/OPENMETRICS-TEXT; version=1.0.0") == reading


def test_a_page_cut_anywhere_is_an_error_or_a_reading_but_never_a_crash() -> None:
    vllm = Vllm()
    text = _text("vllm-0.32.0-loaded.txt")
    outcomes = set()
    for end in range(0, len(text), 997):
        try:
            vllm.read(text[:end])
            outcomes.add("reading")
        except BadMetrics:
            outcomes.add("bad")
    assert outcomes == {"reading", "bad"}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_what_the_engines_own_library_writes(accept: str) -> None:
    """vLLM writes and filters with prometheus_client, whose OpenMetrics makes the colon of a name an underscore."""
    registry = CollectorRegistry()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "unasked"):
        Gauge(f"vllm:{name}", "", ["engine"], registry=registry).labels("0").set(1)
    Counter("vllm:prompt_tokens", "", ["engine"], registry=registry).labels("0").inc(7)
    Histogram("vllm:time_to_first_token_seconds", "", ["engine"], registry=registry).labels("0").observe(0.3)
    encode, content_type = choose_encoder(accept)
    vllm = Vllm()
    whole = vllm.read(encode(registry).decode(), content_type)
    assert (whole.kv_usage, whole.running, whole.waiting, whole.prompt_tokens) == (1.0, 1, 1, 7)
    assert whole.ttft is not None
    assert (whole.ttft.count, whole.ttft.sum) == (1, 0.3)
    assert whole.others
    filtered = vllm.read(encode(registry.restricted_registry(vllm.names)).decode(), content_type)
    assert filtered == replace(whole, others=False)
