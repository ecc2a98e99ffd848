"""What an engine counts about itself: the numbers behind vLLM's metrics, as plain values. No text and no time in here.

`vllm_metrics.py` turns them into the exposition text. Bucket bounds are those of vLLM 0.32.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds: end-to-end, queue, inference, prefill and decode time of a request."""
FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
ITERATION_BOUNDS = (1.0, *(float(2**power) for power in range(3, 15)))
TOKEN_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts per bucket (not cumulative; the last is for values above all bounds), sum and count."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times


class Finish(StrEnum):
    """How a sequence left the engine. vLLM does not count a client's abort anywhere."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


def _histogram(bounds: tuple[float, ...]) -> Histogram:
    return field(default_factory=lambda: Histogram(bounds))


@dataclass(slots=True)
class EngineStats:
    """Counters since the start or the last reset. Tokens and seconds; a sequence counts as a request, as in vLLM."""

    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens, each counted once, when the request's first token comes (recomputation is not in it)."""
    generation_tokens: int = 0
    recomputed_tokens: int = 0
    """KV tokens lost to preemptions, to be computed again: wasted work. vLLM has no such series."""
    aborts: int = 0
    refused_queue_full: int = 0
    steps: int = 0
    busy_s: float = 0.0
    """Time spent in steps: the share of it in wall time is the engine's load."""
    finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(Finish, 0))

    first_token_s: Histogram = _histogram(FIRST_TOKEN_BOUNDS)
    token_gap_s: Histogram = _histogram(TOKEN_GAP_BOUNDS)
    iteration_tokens: Histogram = _histogram(ITERATION_BOUNDS)
    time_per_token_s: Histogram = _histogram(TOKEN_GAP_BOUNDS)
    end_to_end_s: Histogram = _histogram(LATENCY_BOUNDS)
    queue_s: Histogram = _histogram(LATENCY_BOUNDS)
    inference_s: Histogram = _histogram(LATENCY_BOUNDS)
    prefill_s: Histogram = _histogram(LATENCY_BOUNDS)
    decode_s: Histogram = _histogram(LATENCY_BOUNDS)
    request_prompt_tokens: Histogram = _histogram(TOKEN_BOUNDS)
    request_generation_tokens: Histogram = _histogram(TOKEN_BOUNDS)
    request_max_tokens: Histogram = _histogram(TOKEN_BOUNDS)
    request_n: Histogram = _histogram(N_BOUNDS)
    request_preemptions: Histogram = _histogram(PREEMPTION_BOUNDS)


class Gauges(Struct, frozen=True, gc=False):
    """What an engine shows of its state, taken after a step. `kv_usage` 0..1."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
