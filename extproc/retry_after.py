"""When a refused client should come back: after those before it, and not together with the others. Pure.

SDKs sleep exactly as told, so whoever is refused in one second comes back in one second, unless the spread comes from us.
"""

from __future__ import annotations

import math
from zlib import crc32

from msgspec import Struct

from extproc.config import RetryAfterPolicy
from extproc.model import PRIORITIES, Outcome
from extproc.outcomes import ANSWERS
from extproc.submission import Submission

RETURN_SHARE = 0.2
"""Of the drain: as much may be called back per second. The rest is for those who come for the first time."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_ID_SHARE = 1 / 1024
"""Of the window: how far a request's id moves it, so that replicas do not tell the same times. More would be uneven."""


class Backlog(Struct, frozen=True, gc=False):
    """What a client has before it. `wait_s`: for what is in the queues; `drain_per_s`: tokens that end on this replica.

    None: unknown; without a drain there is no line.
    """

    wait_s: float | None = None
    drain_per_s: float | None = None


class Window(Struct, frozen=True, gc=False):
    """Where a Retry-After may lie: seconds from now, `earliest_s` and up to `most_s` more, at least `least_s` of them used."""

    earliest_s: float
    least_s: float
    most_s: float


class Place(Struct, frozen=True, gc=False):
    """When one comes back: from `from_s` and within `span_s` more. `takes_s`: of the line, 0 where it does not stand."""

    from_s: float
    span_s: float
    takes_s: float


def window(wait_s: float | None, policy: RetryAfterPolicy) -> Window:
    """Around the expected wait, +- jitter, within min..max; `most_s` reaches to max.

    `wait_s` None (the drain is unknown) or 0 (nothing waits, yet the engines are over their watermark): around `base`. The
    middle is moved so that the jitter fits before max: one cut off there would send everyone back at once.
    """
    jitter, highest_s = policy.jitter, policy.max_s / (1 + policy.jitter)
    lowest_s = min(policy.min_s / (1 - jitter), highest_s) if jitter < 1 else 0.0
    middle_s = max(lowest_s, min(wait_s or policy.base_s, highest_s))
    earliest_s = max(policy.min_s, middle_s * (1 - jitter))
    latest_s = min(policy.max_s, middle_s * (1 + jitter))
    return Window(earliest_s, max(0.0, latest_s - earliest_s), policy.max_s - earliest_s)


def _even(chance: float, place: Place, now: float) -> float:
    """How far within the place: so that the moments at which clients come back are even, not only the times they are told.

    `chance` is a point on a circle as long as the place's span, around which time runs; the next time it comes by.
    """
    return (chance * place.span_s - now - place.from_s) % place.span_s if place.span_s > 0 else 0.0


def golden(number: int, request_id: str) -> float:
    """In [0, 1): the `number`th of a sequence each stretch of which is even (the fractional parts of multiples of the golden
    ratio), moved a little by the request's id."""
    return (number * _GOLDEN + crc32(request_id.encode("utf-8", "surrogatepass")) / 2**32 * _ID_SHARE) % 1.0


class Returns:
    """One pool's refused clients that are still to come back, as a line for each priority.

    A line moves at `RETURN_SHARE` of the drain. Who is refused stands behind those of its own and of higher priorities, and
    is told the time at which its place is reached. While the line is shorter than the jitter, moments within that are dealt
    evenly. Who finds no place before the policy's max does not stand, but is dealt a moment in the whole window: then more
    than `RETURN_SHARE` comes back, but never in a wave. All three fill each second alike.
    """

    __slots__ = ("_refused", "_until")

    def __init__(self) -> None:
        self._refused = 0
        self._until = [-math.inf for _ in PRIORITIES]
        """Per priority, the clock second to which its line reaches, the expected wait left aside."""

    def told_s(
        self, outcome: Outcome, submission: Submission, now: float, *, backlog: Backlog, policy: RetryAfterPolicy
    ) -> float | None:
        """What this refused client is told, seconds; None: nothing. It stands in the line from now on."""
        if not ANSWERS[outcome].retry_after:
            return None
        self._refused += 1
        chance = golden(self._refused, submission.request_id)
        if outcome is Outcome.DRAINING:
            return draining_retry_after_s(chance=chance)
        place = self._place(submission, now, backlog=backlog, policy=policy)
        if place.takes_s > 0:
            for priority in PRIORITIES[submission.priority :]:
                self._until[priority] = min(max(now, self._until[priority]) + place.takes_s, now + policy.max_s)
        return place.from_s + _even(chance, place, now)

    def expected_s(self, submission: Submission, now: float, *, backlog: Backlog, policy: RetryAfterPolicy) -> float:
        """What such a client is told if it is refused now, about."""
        place = self._place(submission, now, backlog=backlog, policy=policy)
        return place.from_s + place.span_s / 2

    def _place(self, submission: Submission, now: float, *, backlog: Backlog, policy: RetryAfterPolicy) -> Place:
        open_to = window(backlog.wait_s, policy)
        if not backlog.drain_per_s:
            return Place(open_to.earliest_s, open_to.least_s, 0.0)
        takes_s = max(1.0, submission.cost.load.tokens) / (RETURN_SHARE * backlog.drain_per_s)
        line_s = max(0.0, self._until[submission.priority] - now)
        span_s = min(takes_s, open_to.least_s)  # a large one that is alone need not come later than a small one
        if line_s + span_s > open_to.most_s:
            return Place(open_to.earliest_s, open_to.most_s, 0.0)
        if line_s + takes_s <= open_to.least_s:
            return Place(open_to.earliest_s, open_to.least_s, takes_s)
        return Place(open_to.earliest_s + line_s, span_s, takes_s)


def refill_retry_after_s(refill_s: float, policy: RetryAfterPolicy) -> float:
    """Until a quota has refilled. Not spread: earlier is too early, and only clients of one tenant are sent back to that moment."""
    return max(policy.min_s, min(refill_s, policy.max_s))


def draining_retry_after_s(*, chance: float) -> float:
    """1 to 3 s, spread: another replica serves as soon as Envoy has noticed."""
    return 1.0 + 2.0 * chance
