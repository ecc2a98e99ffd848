"""What an engine is and what it is asked: sizes, speeds, requests. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from extproc.sim.engine_stats import Finish


class Scheduling(StrEnum):
    """Who runs first: first come, or the lowest priority number (then first come)."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Refusal(StrEnum):
    """Why the engine does not take a request."""

    TOO_LARGE = "too-large"
    """Prompt and longest possible answer exceed `EngineSpec.longest`; vLLM answers 400."""
    QUEUE_FULL = "queue-full"
    """The engine's own cap, `max_num_queued_reqs`; vLLM answers 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine's size and speed. The defaults are an 8B model on an H100-class card.

    A step takes `step_base_s + prefill_token_s * prefilled tokens + sequence_s * sequences + context_token_s * KV
    tokens held`, divided by `speed`, seconds.
    """

    kv_tokens: int = 400_000
    block_size: int = 16
    max_num_seqs: int = 256
    chunk: int = 1024
    """Token budget of a step (vLLM: max_num_batched_tokens); not below `max_num_seqs`."""
    scheduling: Scheduling = Scheduling.FCFS
    step_base_s: float = 7.7e-3
    prefill_token_s: float = 32e-6
    sequence_s: float = 4.4e-6
    context_token_s: float = 0.076e-6
    speed: float = 1.0
    max_model_len: int | None = None
    """Longest prompt plus answer, tokens; by default what the KV cache holds."""
    max_num_queued_reqs: int | None = None
    """vLLM's own admission: the most sequences in the engine, waiting **and running**; None: no cap."""

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.kv_tokens < 2 * self.block_size:
            raise ValueError("kv_tokens must hold at least two blocks of at least one token")
        if not 1 <= self.max_num_seqs <= self.chunk:
            raise ValueError("max_num_seqs must be at least 1, and chunk not below max_num_seqs")
        if self.speed <= 0 or self.step_base_s <= 0:
            raise ValueError("speed and step_base_s must be above 0")

    @property
    def total_blocks(self) -> int:
        return self.kv_tokens // self.block_size

    @property
    def usable_blocks(self) -> int:
        """vLLM keeps one block for itself: with 128 blocks its gauge counts in 127ths."""
        return self.total_blocks - 1

    @property
    def longest(self) -> int:
        """The most tokens, prompt plus answer, that one sequence may have."""
        held = self.usable_blocks * self.block_size
        return held if self.max_model_len is None else min(held, self.max_model_len)


class SimRequest(Struct, frozen=True, gc=False):
    """One sequence. `output_tokens`: the true length of the answer; `max_tokens`: the client's bound on it."""

    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    n: int = 1
    """Answers wanted by the HTTP request this belongs to; for the metrics only."""

    @property
    def bound(self) -> int:
        return self.output_tokens if self.max_tokens is None else self.max_tokens

    @property
    def ending(self) -> Finish:
        return Finish.LENGTH if self.output_tokens == self.max_tokens else Finish.STOP
