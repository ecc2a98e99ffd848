"""One classified and costed request, as the queues and the dispatcher need it. A value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from extproc.model import DEFAULT_TENANT, Api, Cost, Priority, Tenant


@dataclass(frozen=True, slots=True)
class Submission:
    """One request as a dispatcher needs it. `patience_s`: how long its client waits for a first byte (inf: not said)."""

    priority: Priority
    cost: Cost
    api: Api = Api.OPENAI
    body_bytes: int = 0
    patience_s: float = math.inf
    tenant: Tenant = DEFAULT_TENANT

    def bounded(self, engine_max_tokens: int | None) -> Submission:
        """A cost above what the largest engine holds is an overestimate: such a request would fail there at once."""
        if engine_max_tokens is None or self.cost.load.tokens <= engine_max_tokens:
            return self
        prompt = min(self.cost.prompt_tokens, engine_max_tokens)
        output = (engine_max_tokens - prompt) // self.cost.sequences
        return replace(self, cost=Cost(prompt, output, self.cost.sequences))
