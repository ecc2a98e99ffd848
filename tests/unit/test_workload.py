"""The demo's traffic is what it says it is, and the same every time."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import PRIORITIES
from extproc.sim.workload import WorkloadSpec, intended_requests, prompt_text

SPEC = WorkloadSpec(rate_per_s=50, seconds=20)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    assert intended_requests(SPEC) == intended_requests(SPEC)
    assert intended_requests(SPEC) != intended_requests(WorkloadSpec(rate_per_s=50, seconds=20, seed=2))


def test_a_longer_window_begins_with_the_same_requests() -> None:
    short = intended_requests(WorkloadSpec(rate_per_s=50, seconds=2))
    assert intended_requests(SPEC)[: len(short)] == short


def test_arrivals_are_poisson() -> None:
    """Count and gaps: a Poisson process has exponential gaps, whose deviation equals their mean."""
    requests = intended_requests(WorkloadSpec(rate_per_s=50, seconds=100, prompt_median_tokens=2))
    assert abs(len(requests) - 5000) < 4 * math.sqrt(5000)
    gaps = [b.at_s - a.at_s for a, b in pairwise(requests)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert all(0 <= r.at_s < 100 for r in requests)


def test_the_mix_and_the_prompts_are_as_told() -> None:
    requests = intended_requests(WorkloadSpec(rate_per_s=50, seconds=60))
    for priority, share in zip(PRIORITIES, SPEC.mix, strict=True):
        assert sum(r.priority is priority for r in requests) / len(requests) == pytest.approx(share, abs=0.03)
    assert statistics.median(r.prompt_tokens for r in requests) == pytest.approx(500, rel=0.06)
    assert max(r.prompt_tokens for r in requests) <= SPEC.prompt_max_tokens


def test_a_body_is_a_streaming_chat_completion_of_the_promised_size() -> None:
    for request in intended_requests(SPEC)[:50]:
        body = msgspec.json.decode(request.body)
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["max_tokens"] == request.max_tokens
        assert math.ceil(len(body["messages"][0]["content"].encode()) / 4) == request.prompt_tokens


@given(tokens=st.integers(1, 5000), seed=st.integers())
def test_prompt_text_has_exactly_the_tokens_asked_for(tokens: int, seed: int) -> None:
    assert len(prompt_text(tokens, label="7 ", rng=Random(seed)).encode()) == 4 * tokens
