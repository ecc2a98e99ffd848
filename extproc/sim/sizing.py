"""The demo's engines, and the load that is three times what they can do. `tests/sim/test_demo_sizing.py` holds it to that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from extproc.sim.openai_request import OutputLengths
from extproc.sim.workload import Intended

ENGINES = 2
ENGINE_SEED = 0
OUTPUT_MEDIAN_TOKENS = 120.0
OUTPUT_SIGMA = 0.7
KV_TOKENS = 24_000
"""Small, as beside a large model: with prompts of 500 tokens it is what fills first."""
SPEED = 0.8
CHUNK = 512
"""A step with a whole chunk of prefill takes 32 ms, well below the TPOT target, as it should on any engine."""
MAX_NUM_SEQS = 128
CAPACITY_TOKENS_PER_S = 3_430.0
"""Output tokens per second of both engines under this traffic at their best, by the engine model: under the best
constant limit, and flooded within 3 %. 22 to 23 requests per second."""
RATE_PER_S = 70.0
"""Requests per second: three times that. What the ratio really was is measured in each run and reported."""

ENGINE_ARGS = (
    *("--kv-tokens", str(KV_TOKENS), "--speed", str(SPEED), "--chunk", str(CHUNK)),
    *("--max-num-seqs", str(MAX_NUM_SEQS), "--seed", str(ENGINE_SEED)),
    *("--output-median", str(OUTPUT_MEDIAN_TOKENS), "--output-sigma", str(OUTPUT_SIGMA)),
)
"""Arguments of `extproc engine`."""

_LENGTHS = OutputLengths(ENGINE_SEED, OUTPUT_MEDIAN_TOKENS, OUTPUT_SIGMA)


def output_tokens(request: Intended) -> int:
    """How long the answer to it is, or would have been. Only for reports: nobody in a run knows it, but the engine."""
    return min(request.max_tokens, _LENGTHS.draw(hashlib.blake2b(request.body).digest(), 0))


def offered_tokens_per_s(requests: Sequence[Intended], seconds: float) -> float:
    """Output tokens asked for, per second of the window."""
    return sum(map(output_tokens, requests)) / seconds
