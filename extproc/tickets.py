"""A request's way through a pool: submitted, refused, waiting, or holding a ticket that ends exactly once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import Struct

from extproc.model import Cost, End, Outcome, Priority, Rejection, Tenant
from extproc.outcomes import MESSAGES
from extproc.submission import Submission


def rejection(outcome: Outcome, submission: Submission, *, pool: str, retry_after_s: float | None) -> Rejection:
    """What a refused client is told."""
    return Rejection(
        outcome=outcome,
        message=MESSAGES[outcome],
        api=submission.api,
        retry_after_s=retry_after_s,
        priority=submission.priority,
        pool=pool,
    )


class Ticket(Struct, eq=False, kw_only=True):
    """An admitted request's hold on a pool's capacity. It is never freed by a timer."""

    pool: str
    priority: Priority
    cost: Cost
    tenant: Tenant
    admitted_at: float
    waited_s: float
    on_end: Callable[[Ticket, End], None]
    prefilled_at: float = -math.inf
    """When its prompt should be through the engines, by the pool's pace; -inf: it has none."""
    worth_timing: bool = False
    """Some controller of the pool goes by latency, and this answer's can be read off its chunks."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    ended: End | None = None
    refund: Callable[[], None] | None = None
    """Gives back what its tenant reserved for it; called where the engine failed it."""

    def timed(self, *, ttft_s: float | None, tpot_s: float | None) -> None:
        """What was measured of the whole answer, to be called before `end`. None: could not be told."""
        self.ttft_s, self.tpot_s = ttft_s, tpot_s

    def end(self, how: End) -> bool:
        """Gives the hold back. True the first time; later calls change nothing."""
        if self.ended is not None:
            return False
        self.ended = how
        self.on_end(self, how)
        if how is End.DROPPED and self.refund is not None:
            self.refund()
        return True


class Waiting:
    """A place in a queue. `verdict` resolves to a Ticket or a Rejection, unless the client leaves first."""

    __slots__ = ("_on_leave", "longest_wait_s", "soon", "verdict")

    def __init__(
        self,
        *,
        verdict: asyncio.Future[Ticket | Rejection],
        longest_wait_s: float,
        on_leave: Callable[[bool], None],
        soon: bool = False,
    ) -> None:
        self.verdict = verdict
        self.soon = soon
        """It only waits for the ledger's word, which is on its way: nobody has told it to queue yet."""
        self.longest_wait_s = longest_wait_s
        """The verdict comes no later than this many seconds from now: what Envoy must be told to wait, and a margin."""
        self._on_leave = on_leave

    def leave(self, *, ghost: bool) -> None:
        """The stream ended before the verdict was sent. `ghost`: Envoy may have let the request pass all the same.

        Safe at any moment: a ticket already granted but not yet delivered is ended too; a second call changes nothing.
        """
        self._on_leave(ghost)


class Place:
    """A submission in a queue and what became of it. The future exists only once somebody has to wait for it."""

    __slots__ = ("future", "submission", "verdict")

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.verdict: Ticket | Rejection | None = None
        self.future: asyncio.Future[Ticket | Rejection] | None = None

    def deliver(self, verdict: Ticket | Rejection) -> None:
        """Once. Nobody may be listening any more: then the one who left ends what was granted."""
        self.verdict = verdict
        if self.future is not None and not self.future.done():
            self.future.set_result(verdict)
