"""What became of each request, and of the engines' time: what a run leaves behind for `measures.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.sim.world.traffic import Arrival


class Fate(StrEnum):
    """How an attempt ended. `PENDING`: it had not when the run did."""

    PENDING = "pending"
    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    LEFT = "left"


@dataclass(slots=True)
class Record:
    """One attempt of one request. Seconds of the run; None: it did not come to that. `attempt`: 0 for the first.

    `reason`: the outcome of a refusal.
    """

    arrival: Arrival
    sent_at: float
    attempt: int = 0
    fate: Fate = Fate.PENDING
    reason: str = ""
    admitted_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True, repr=False)
class Diary:
    """A whole run. `generated`: tokens by whole second; `refused`: refusals by whole second.

    No `repr`: asyncio's runner words a run's result to itself, for an error that it then suppresses, every record of it.
    """

    records: list[Record] = field(default_factory=list)
    generated: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    computed_tokens: int = 0
    preemptions: int = 0

    def came(self, now: float, tokens: int) -> None:
        self.generated[int(now)] += tokens
