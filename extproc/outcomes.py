"""The one table from outcome to what the client sees."""

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
    Outcome.QUOTA: Answer(429, "quota"),
    Outcome.UNAUTHENTICATED: Answer(401, "unauthenticated", retry_after=False, should_retry=False),
    Outcome.TOO_LARGE: Answer(413, "too-large", retry_after=False, should_retry=False),
    Outcome.UNAVAILABLE: Answer(503, "unavailable"),
    Outcome.DRAINING: Answer(503, "draining"),
}
"""Outcomes absent here are not answered by us: admitted and passed go upstream, a client gone hears nothing."""

MESSAGES: dict[Outcome, str] = {
    Outcome.SHED: "The model is overloaded right now. Please retry after the time given.",
    Outcome.QUEUE_FULL: "Too many requests are waiting for this model. Please retry after the time given.",
    Outcome.QUEUE_TIMEOUT: "The request waited for its turn as long as it may. Please retry after the time given.",
    Outcome.EARLY_DROP: "The request would have waited too long for its turn. Please retry after the time given.",
    Outcome.DEADLINE: "The request could not have been answered within the time its client allows. Please retry later.",
    Outcome.QUOTA: "The quota of this API key is used up for now. Please retry after the time given.",
    Outcome.UNAUTHENTICATED: "A valid API key is required.",
    Outcome.TOO_LARGE: "The request is larger than any engine of this model can hold. Please shorten it.",
    Outcome.UNAVAILABLE: "No engine can serve this model right now. Please retry after the time given.",
    Outcome.DRAINING: "This gateway is shutting down. Please retry after the time given.",
}
"""What the client's developer reads."""
