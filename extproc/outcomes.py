"""The one table from outcome to what the client sees (DESIGN section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.model import Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, the `x-extproc-reason` header, whether Retry-After is sent, whether a retry makes sense at all."""

    status: int
    reason: str
    retry_after: bool = True
    should_retry: bool = True


ANSWERS: dict[Outcome, Answer] = {
    Outcome.SHED: Answer(429, "overload"),
    Outcome.QUEUE_FULL: Answer(429, "queue-full"),
    Outcome.QUEUE_TIMEOUT: Answer(429, "queue-timeout"),
    Outcome.EARLY_DROP: Answer(429, "early-drop"),
    Outcome.DEADLINE: Answer(429, "deadline"),
    Outcome.TOO_LARGE: Answer(413, "too-large", retry_after=False, should_retry=False),
    Outcome.UNAVAILABLE: Answer(503, "unavailable"),
    Outcome.DRAINING: Answer(503, "draining"),
}
"""Outcomes absent here are not answered by us: admitted and passed go upstream, a client gone hears nothing."""
