"""What a real engine did under 4 to 64 streams. Values only.

Measured on vLLM 0.32 (CPU build, a small random model), 4096 KV tokens in 128 blocks of 32, prompt 49, output 256 tokens.
How long the streams went on was not written down: the fit has to find that out too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KV_TOKENS = 4096
BLOCK_SIZE = 32
MAX_NUM_SEQS = 64
CHUNK = 2048
PROMPT_TOKENS = 49
OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table. Seconds; a gap is the time between two tokens of one stream."""

    ttft_p50_s: float
    ttft_p95_s: float
    gap_p50_s: float
    gap_p95_s: float
    longest_gap_s: float
    tokens_per_s: float
    preemptions: float


MEASURED: Mapping[int, Cell] = MappingProxyType(
    {
        4: Cell(0.11, 0.13, 0.016, 0.028, 0.2, 216, 0),
        8: Cell(0.20, 0.23, 0.021, 0.035, 0.3, 347, 0),
        16: Cell(0.40, 0.94, 0.027, 0.066, 3.6, 430, 12),
        32: Cell(0.69, 5.9, 0.031, 0.085, 9.4, 504, 95),
        64: Cell(1.7, 18.3, 0.030, 0.096, 21.9, 556, 135),
    }
)
"""By the number of streams, each of which asks again when it has its answer."""
