"""One classified and costed request, as the queues and the dispatcher need it. A value."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from extproc.capacity import most_slots
from extproc.model import DEFAULT_TENANT, Api, Cost, Outcome, PoolState, Priority, Tenant

HEARD_SHARE = 0.95
"""A refusal at the end of a client's patience must reach it before it gives up, or nobody hears when to come back."""


DEPTH_SHARE = 0.45
"""Of the depth of a pool's pace, so much stands before who goes if it is lucky: nobody is refused who may be in time."""


class Submission(Struct, frozen=True):
    """One request as a dispatcher needs it. `patience_s`: how long its client waits for a first byte (inf: not said); `target_s`:
    within which time a first token was promised (inf: nothing was, or it is served late as well).

    `retry`: it says that it is one, which is counted. `request_id`: moves its Retry-After a little.
    """

    priority: Priority
    cost: Cost
    api: Api = Api.OPENAI
    body_bytes: int = 0
    patience_s: float = math.inf
    tenant: Tenant = DEFAULT_TENANT
    request_id: str = ""
    retry: bool = False
    target_s: float = math.inf

    @property
    def prompt_tokens(self) -> int:
        return self.cost.prompt_tokens

    def bounded(self, state: PoolState) -> Submission:
        """At most what the pool could ever grant; more would wait for ever.

        Tokens above what the largest engine holds are an overestimate: such a request would fail there at once. Sequences
        above the pool's slots are real, but its engines run them one after the other.
        """
        cost = self.cost
        if cost.sequences > 1 and cost.sequences > (slots := most_slots(state, self.priority)):
            output = math.ceil(cost.output_tokens * cost.sequences / slots)
            cost = Cost(cost.prompt_tokens, output, int(slots))
        tokens = state.engine_max_tokens
        if tokens is not None and cost.load.tokens > tokens:
            prompt = min(cost.prompt_tokens, tokens)
            cost = Cost(prompt, (tokens - prompt) // cost.sequences, cost.sequences)
        return self if cost is self.cost else replace(self, cost=cost)

    def useful_wait_s(self, state: PoolState) -> float:
        """The longest wait after which the engines, as fast as they are now, still answer in time; may be negative."""
        return min(self.patience_s, self.target_s) * HEARD_SHARE - self._first_token_s(state)

    def _first_token_s(self, state: PoolState) -> float:
        """After it has gone: where a pace is known, what stands before it and its own prompt, else as the others."""
        pace = state.pace
        if pace is None:
            return state.expected_ttft_s or 0.0
        own_tokens = self.cost.prompt_tokens * state.engines_reporting  # it is one engine's, the pace is all engines'
        return (pace.depth(self.priority) * DEPTH_SHARE + own_tokens) / pace.tokens_per_s

    def longest_wait(self, limit_s: float, state: PoolState) -> tuple[float, Outcome]:
        """How long it may wait where `limit_s` bounds all, and its outcome when that is over.

        Where no wait is useful it may still go at once, and take its chance with the engine.
        """
        useful_s = self.useful_wait_s(state)
        useful_s = useful_s if useful_s > 0 else self.patience_s
        return (useful_s, Outcome.DEADLINE) if useful_s < limit_s else (limit_s, Outcome.QUEUE_TIMEOUT)
