"""One pool's waiters: who is refused on the way in, who waits and for how long, and who is told to go.

The ledger and what is held are only read here: to ask for capacity and to let in is the dispatcher's. Synchronous, and called
by the dispatcher alone, so that no two decisions interleave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from extproc.clock import Clock
from extproc.config import QueuePolicy, RetryAfterPolicy
from extproc.holds import Holds
from extproc.identity import Sender
from extproc.judgement import Judgement
from extproc.levels import Levels
from extproc.model import Cost, Outcome, Priority, Rejection
from extproc.ports import Ledger, Observer
from extproc.queues.bands import Bands, Waiter
from extproc.retry_after import Backlog, Returns
from extproc.submission import Submission
from extproc.tickets import Place, rejection


class Waiters:
    """`longest_wait_s` bounds every wait (Envoy's maximum, less a margin). `levels`: who is refused at a rejection rate; `wall`:
    seconds since the epoch, for the levels alone."""

    def __init__(
        self,
        pool: str,
        queues: Sequence[QueuePolicy],
        *,
        retry: RetryAfterPolicy,
        longest_wait_s: float,
        ledger: Ledger,
        holds: Holds,
        clock: Clock,
        observer: Observer,
        levels: Levels,
        wall: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._retry = retry
        self._longest_wait_s = longest_wait_s
        self._ledger = ledger
        self._holds = holds
        self._clock = clock
        self._observer = observer
        self._levels = levels
        self._wall = wall
        self.bands: Bands[Place] = Bands(queues)
        self.draining = False
        self._judgement = Judgement(self.bands, holds.traffic)
        self._returns = Returns()

    def use(
        self, queues: Sequence[QueuePolicy], *, retry: RetryAfterPolicy, longest_wait_s: float, secret: bytes
    ) -> None:
        """A new policy under whoever waits: see `Band.use`. Envoy was told each waiter's longest wait."""
        self._retry = retry
        self._longest_wait_s = longest_wait_s
        self._levels.secret = secret
        self.bands.use(queues)

    def refuse_on_arrival(self, submission: Submission, who: Callable[[], Sender]) -> Rejection | None:
        """See `Dispatcher.refuse_on_arrival`."""
        now = self._clock.now()
        self._holds.traffic.offered(submission.priority, now)
        if submission.retry:
            self._observer.retried(submission.priority, self._pool)
        if self.draining:
            return self.refuse(Outcome.DRAINING, submission)
        rate = self._ledger.state.rejection[submission.priority]
        if rate > 0 and self._levels.refuses(submission.priority, rate, who=who, now=now, wall_s=self._wall()):
            return self.refuse(Outcome.SHED, submission)
        return self.judge(submission, now, waits=True) if self.bands.blocked(submission.priority) else None

    def judge(self, submission: Submission, now: float, *, waits: bool, waited_s: float = 0.0) -> Rejection | None:
        """Refused where it `waits` and must not, or could go at once and must not; None: it may."""
        state, total = self._ledger.state, self._ledger.total
        if not waits:
            must_not = self._judgement.must_leave_room(submission, state, total)
            return self.refuse(Outcome.SHED, submission) if must_not else None
        wait_s = self._judgement.expected_wait_s(submission, state, total)
        outcome = self._judgement.must_not_wait(submission, state, total, now=now, expected_wait_s=wait_s)
        return None if outcome is None else self._refuse(outcome, submission, wait_s, waited_s=waited_s)

    def refuse(self, outcome: Outcome, submission: Submission, *, waited_s: float = 0.0) -> Rejection:
        """Counts the refusal and words it."""
        return self._refuse(outcome, submission, self._expected_wait_s(submission), waited_s=waited_s)

    def retry_after_s(self, priority: Priority) -> float:
        """What a client of the default tenant that is refused now is told, about."""
        newcomer = Submission(priority, Cost(0, round(self._holds.traffic.mean_cost.tokens)))
        backlog = self._backlog(self._expected_wait_s(newcomer))
        return self._returns.expected_s(newcomer, self._clock.now(), backlog=backlog, policy=self._retry)

    def enqueue(self, submission: Submission, now: float, *, judged: bool) -> tuple[Waiter[Place], bool]:
        """And whether others had to make room for it. `judged`: the drop policy has let it wait."""
        band = self.bands[submission.priority]
        limit_s = min(band.policy.timeout_s, self._longest_wait_s)
        longest_s, late = submission.longest_wait(limit_s, self._ledger.state)
        waiter = Waiter(
            Place(submission),
            priority=submission.priority,
            load=submission.cost.load,
            body_bytes=submission.body_bytes,
            arrived=now,
            deadline=now + longest_s,
            late=late,
            tenant=submission.tenant,
            prompt_tokens=submission.prompt_tokens,
            judged=judged,
        )
        return waiter, self._push(waiter)

    def stay_or_go(self, waiter: Waiter[Place], now: float) -> bool:
        """The drop policy's word on a newcomer that could not go at once. It is in its queue already, alone or not. True:
        others had to make room for it."""
        item = waiter.item
        if not self.bands[waiter.priority].remove(waiter):
            return False
        waiter.judged = True
        if refusal := self.judge(item.submission, now, waits=True, waited_s=now - waiter.arrived):
            item.deliver(refusal)
            return False
        return self._push(waiter)

    def called(self, waiter: Waiter[Place], now: float) -> bool:
        """It may go, and is out of its queue. False: it has left, or an answer would come too late, of which it is told."""
        late = waiter.judged and now - waiter.arrived > waiter.item.submission.useful_wait_s(self._ledger.state)
        if not self.bands[waiter.priority].remove(waiter, served=not late):
            return False
        if late:
            self._drop(waiter, Outcome.DEADLINE)
        return not late

    def left(self, waiter: Waiter[Place]) -> bool:
        """Its client, or Envoy, is gone. False: it did not wait any more."""
        if not self.bands[waiter.priority].remove(waiter):
            return False
        waited_s = self._clock.now() - waiter.arrived
        self._observer.decided(Outcome.CLIENT_GONE, waiter.priority, self._pool, waited_s=waited_s)
        return True

    def drop_overdue(self, now: float) -> float | None:
        """Drops one whose wait is over: None. Else when somebody's may be, if nothing else changes; inf: never."""
        if not self.bands.count:
            return math.inf
        pressure = self._judgement.pressure(self._ledger.state, self._ledger.total)
        found = self.bands.overdue(now, pressure=pressure)
        if not isinstance(found, tuple):
            return found
        self._drop(*found)
        return None

    def drain(self) -> None:
        """From now on everybody is refused; who waits is answered."""
        self.draining = True
        for band in self.bands:
            while waiter := band.oldest():
                self._drop(waiter, Outcome.DRAINING)

    def _refuse(
        self, outcome: Outcome, submission: Submission, expected_wait_s: float | None, *, waited_s: float
    ) -> Rejection:
        self._observer.decided(outcome, submission.priority, self._pool, waited_s=waited_s)
        now, backlog = self._clock.now(), self._backlog(expected_wait_s)
        after_s = self._returns.told_s(outcome, submission, now, backlog=backlog, policy=self._retry)
        return rejection(outcome, submission, pool=self._pool, retry_after_s=after_s)

    def _expected_wait_s(self, submission: Submission) -> float | None:
        return self._judgement.expected_wait_s(submission, self._ledger.state, self._ledger.total)

    def _backlog(self, expected_wait_s: float | None) -> Backlog:
        return Backlog(expected_wait_s, self._holds.drain_tokens_per_s)

    def _push(self, waiter: Waiter[Place]) -> bool:
        """Into its band. Where that is full, room is made by those who take more than their share of it; then True."""
        band, dropped = self.bands[waiter.priority], False
        while band.full_for(waiter.body_bytes) and (last := band.yielding_to(waiter.tenant)):
            self._drop(last, Outcome.QUEUE_FULL)
            dropped = True
        band.push(waiter)
        return dropped

    def _drop(self, waiter: Waiter[Place], outcome: Outcome) -> None:
        self.bands[waiter.priority].remove(waiter)
        waited_s = self._clock.now() - waiter.arrived
        waiter.item.deliver(self.refuse(outcome, waiter.item.submission, waited_s=waited_s))
