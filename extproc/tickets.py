"""What a request holds between its verdict and its end: a ticket, or a place in a queue. Ends exactly once, whoever calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extproc.model import Cost, End, Priority, Rejection


class Ticket:
    """An admitted request's hold on a pool's capacity. It is never freed by a timer."""

    __slots__ = ("_on_end", "admitted_at", "cost", "ended", "pool", "priority", "waited_s")

    def __init__(
        self,
        *,
        pool: str,
        priority: Priority,
        cost: Cost,
        admitted_at: float,
        waited_s: float,
        on_end: Callable[[Ticket, End], None],
    ) -> None:
        self.pool = pool
        self.priority = priority
        self.cost = cost
        self.admitted_at = admitted_at
        self.waited_s = waited_s
        self.ended: End | None = None
        self._on_end = on_end

    def end(self, how: End) -> bool:
        """Gives the hold back. True the first time; later calls change nothing."""
        if self.ended is not None:
            return False
        self.ended = how
        self._on_end(self, how)
        return True


class Waiting:
    """A place in a queue. `verdict` resolves to a Ticket or a Rejection, unless the client leaves first."""

    __slots__ = ("_on_leave", "longest_wait_s", "verdict")

    def __init__(
        self,
        *,
        verdict: asyncio.Future[Ticket | Rejection],
        longest_wait_s: float,
        on_leave: Callable[[bool], None],
    ) -> None:
        self.verdict = verdict
        self.longest_wait_s = longest_wait_s
        """The verdict comes no later than this many seconds from now: what Envoy must be told to wait, and a margin."""
        self._on_leave = on_leave

    def leave(self, *, ghost: bool) -> None:
        """The stream ended before the verdict was sent. `ghost`: Envoy may have let the request pass all the same.

        Safe at any moment: a ticket already granted but not yet delivered is ended too; a second call changes nothing.
        """
        self._on_leave(ghost)
