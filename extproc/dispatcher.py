"""One pool's dispatcher: the single writer of its queues and of its asks.

Everything here is synchronous, so that no two decisions interleave: requests come in by `submit`, tickets end, the
ledger answers, a timer fires. Each of these changes the state and then runs `_settle`, which drops whoever's wait is
over and asks the ledger for the rest until nothing more may go. There is no polling.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from extproc.clock import Alarm, Clock
from extproc.config import ControllerName, PoolPolicy, QueuePolicy, RetryAfterPolicy
from extproc.identity import Sender
from extproc.judgement import Judgement
from extproc.levels import Levels
from extproc.meters import Traffic
from extproc.model import (
    NOTHING,
    Cost,
    Demand,
    End,
    Finished,
    Latency,
    Load,
    Outcome,
    Pace,
    PoolState,
    Priority,
    Rejection,
)
from extproc.pace import Prefills
from extproc.ports import Ask, Ledger, Observer, Verdicts, Want
from extproc.queues.bands import Bands, Waiter, pass_one
from extproc.retry_after import Backlog, Returns
from extproc.submission import Submission
from extproc.tickets import Place, Ticket, Waiting, rejection

_WANTS_PER_ASK = 16


class Dispatcher:
    """`new_future` makes the futures that waiters await; `longest_wait_s` bounds every wait (Envoy's maximum, less a margin).

    `levels`: who is refused at a rejection rate; `wall`: seconds since the epoch, for the levels alone.
    """

    def __init__(
        self,
        pool: PoolPolicy,
        queues: tuple[QueuePolicy, ...],
        *,
        retry: RetryAfterPolicy,
        longest_wait_s: float,
        ledger: Ledger,
        clock: Clock,
        observer: Observer,
        levels: Levels,
        wall: Callable[[], float],
        new_future: Callable[[], asyncio.Future[Ticket | Rejection]],
    ) -> None:
        self.pool = pool.name
        self._goes_by_latency = ControllerName.VEGAS in pool.controllers
        self._retry = retry
        self._longest_wait_s = longest_wait_s
        self._ledger = ledger
        self._clock = clock
        self._observer = observer
        self._levels = levels
        self._wall = wall
        self._new_future = new_future
        self._bands: Bands[Place] = Bands(queues)
        self._in_use: list[Load] = [NOTHING, NOTHING, NOTHING]
        self._new_ghosts = NOTHING
        self._asked: list[Waiter[Place]] | None = None
        self._passing: Waiter[Place] | None = None
        """Asked for alone, next: a small one that goes before a large one at the head."""
        self._dirty = self._settling = self._draining = False
        self._alarm = Alarm(clock, self._on_alarm)
        self._ask_again_at = math.inf
        self._newcomers: list[Waiter[Place]] = []
        self._traffic = Traffic()
        self._prefills = Prefills()
        self._judgement = Judgement(self._bands, self._traffic)
        self._returns = Returns()
        ledger.on_wake(self._on_wake)

    def refuse_on_arrival(self, submission: Submission, who: Callable[[], Sender]) -> Rejection | None:
        """What can be said before the body is here; the cost in `submission` is a guess. Counts the request as offered.

        `who`: whose request it is, asked for only where some are refused outright.
        """
        now = self._clock.now()
        self._traffic.offered(submission.priority, now)
        if submission.retry:
            self._observer.retried(submission.priority, self.pool)
        if self._draining:
            return self.refuse(Outcome.DRAINING, submission)
        rate = self._ledger.state.rejection[submission.priority]
        if rate > 0 and self._levels.refuses(submission.priority, rate, who=who, now=now, wall_s=self._wall()):
            return self.refuse(Outcome.SHED, submission)
        if self._bands.blocked(submission.priority) and (outcome := self._judge(submission, now, waits=True)):
            return self.refuse(outcome, submission)
        return None

    def submit(self, submission: Submission) -> Ticket | Waiting | Rejection:
        """Decides now, or queues. The caller has called `refuse_on_arrival` for this request before."""
        now = self._clock.now()
        if self._draining:
            return self.refuse(Outcome.DRAINING, submission)
        submission = submission.bounded(self._ledger.state)
        self._traffic.costed(submission.cost.load)
        self._bands[submission.priority].shares.seen(submission.tenant, now)
        blocked = self._bands.blocked(submission.priority)
        if outcome := self._judge(submission, now, waits=blocked):
            return self.refuse(outcome, submission)
        if self._lets([submission], now)[0] and self._at_once([Want(submission.priority, submission.cost.load)]):
            self._bands[submission.priority].pass_by(submission.tenant, submission.cost.load)
            return self._grant(submission, now, waited_s=0.0)
        waiter = self._enqueue(submission, now, judged=blocked)
        if not blocked:
            self._newcomers.append(waiter)
        self._dirty = True
        self._settle()
        if (place := waiter.item).verdict is not None:
            return place.verdict
        place.future = self._new_future()
        return Waiting(
            verdict=place.future,
            longest_wait_s=max(0.0, waiter.deadline - now),
            on_leave=lambda ghost: self._leave(waiter, ghost=ghost),
            soon=not waiter.judged,
        )

    def refuse(self, outcome: Outcome, submission: Submission, *, waited_s: float = 0.0) -> Rejection:
        """Counts the refusal and words it."""
        self._observer.decided(outcome, submission.priority, self.pool, waited_s=waited_s)
        now, backlog = self._clock.now(), self._backlog(submission)
        after_s = self._returns.told_s(outcome, submission, now, backlog=backlog, policy=self._retry)
        return rejection(outcome, submission, pool=self.pool, retry_after_s=after_s)

    def use(
        self,
        pool: PoolPolicy,
        queues: Sequence[QueuePolicy],
        *,
        retry: RetryAfterPolicy,
        longest_wait_s: float,
        secret: bytes,
    ) -> None:
        """A new policy under whoever waits and whatever is held: see `Band.use`. Envoy was told each waiter's longest wait."""
        self._goes_by_latency = ControllerName.VEGAS in pool.controllers
        self._retry = retry
        self._longest_wait_s = longest_wait_s
        self._levels.secret = secret
        self._bands.use(queues)
        self._dirty = self._bands.count > 0
        self._settle()

    def drain(self) -> None:
        """From now on nobody is let in; who waits is answered."""
        self._draining = True
        for band in self._bands:
            while waiter := band.oldest():
                self._drop(waiter, Outcome.DRAINING)
        self._settle()

    def demand(self, now: float) -> Demand:
        return self._traffic.demand(now, self.in_use, self._bands.waiting())

    def take_latencies(self) -> tuple[Latency, ...]:
        return self._traffic.take_latencies()

    @property
    def finished(self) -> Finished:
        return self._traffic.total

    def retry_after_s(self, priority: Priority) -> float:
        """What a client of the default tenant that is refused now is told, about."""
        newcomer = Submission(priority, Cost(0, round(self._traffic.mean_cost.tokens)))
        return self._returns.expected_s(
            newcomer, self._clock.now(), backlog=self._backlog(newcomer), policy=self._retry
        )

    @property
    def in_use(self) -> tuple[Load, Load, Load]:
        return self._in_use[0], self._in_use[1], self._in_use[2]

    @property
    def total(self) -> Load:
        """Load in use over all replicas, ghost load included, as the ledger last said."""
        return self._ledger.total

    @property
    def state(self) -> PoolState:
        return self._ledger.state

    @property
    def bands(self) -> Bands[Place]:
        """For reading only."""
        return self._bands

    @property
    def _pace(self) -> Pace | None:
        """This replica's part of the pool's."""
        pace = self._ledger.state.pace
        return None if pace is None else pace.shared(self._ledger.replicas)

    def _backlog(self, submission: Submission) -> Backlog:
        wait_s = self._judgement.expected_wait_s(submission, self._ledger.state, self._ledger.total)
        return Backlog(wait_s, self._traffic.drain_tokens_per_s(self._in_use))

    @property
    def _pressure(self) -> bool:
        return self._judgement.pressure(self._ledger.state, self._ledger.total)

    def _judge(self, submission: Submission, now: float, *, waits: bool) -> Outcome | None:
        return self._judgement.refuse(submission, self._ledger.state, self._ledger.total, now=now, waits=waits)

    def _enqueue(self, submission: Submission, now: float, *, judged: bool) -> Waiter[Place]:
        band = self._bands[submission.priority]
        longest_s, late = submission.longest_wait(min(band.policy.timeout_s, self._longest_wait_s), self.state)
        waiter = Waiter(
            Place(submission),
            priority=submission.priority,
            load=submission.cost.load,
            body_bytes=submission.body_bytes,
            arrived=now,
            deadline=now + longest_s,
            late=late,
            tenant=submission.tenant,
            judged=judged,
        )
        self._queue(waiter)
        return waiter

    def _queue(self, waiter: Waiter[Place]) -> None:
        """Into its band. Where that is full, room is made by those who take more than their share of it."""
        band = self._bands[waiter.priority]
        while band.full_for(waiter.body_bytes) and (last := band.yielding_to(waiter.tenant)):
            self._drop(last, Outcome.QUEUE_FULL)
        band.push(waiter)

    def _settle(self) -> None:
        """Asks while there is something to ask, drops whoever is overdue. Not reentrant: inner calls only mark."""
        if self._settling:
            return
        self._settling = True
        now = self._clock.now()
        try:
            while True:
                if self._dirty and self._asked is None:
                    self._dirty = False
                    self._ask(now)
                elif self._bands.count and (overdue := self._bands.overdue(now, pressure=self._pressure)):
                    self._drop(*overdue)
                else:
                    break
        finally:
            self._settling = False
        due = self._bands.next_due(pressure=self._pressure) if self._bands.count else None
        self._alarm.by(min(math.inf if due is None else due, self._ask_again_at))

    def _at_once(self, wants: Sequence[Want] = ()) -> bool:
        """Where nobody stands in line, and the ledger answers here and now, nobody needs to: True where all wants may go."""
        if self._asked is not None or self._settling or self._bands.count:
            return False
        verdicts = self._ledger.at_once(self._new_ask(wants))
        if verdicts is None:
            return False
        self._new_ghosts, self._dirty, self._ask_again_at = NOTHING, False, math.inf
        return verdicts.admitted == len(wants)

    def _ask(self, now: float) -> None:
        heads = [self._passing] if self._passing else self._bands.heads(_WANTS_PER_ASK)
        count, room_at = self._lets([waiter.item.submission for waiter in heads], now)
        self._asked = heads[:count]
        unheard, self._newcomers = self._newcomers, []
        ask = self._new_ask([Want(waiter.priority, waiter.load, now - waiter.arrived) for waiter in self._asked])
        self._new_ghosts, self._passing, self._ask_again_at = NOTHING, None, math.inf
        self._ledger.ask(ask, lambda verdicts: self._on_verdicts(verdicts, unheard, room_at=room_at))

    def _new_ask(self, wants: Sequence[Want]) -> Ask:
        return Ask(self.in_use, wants, ghosts=self._new_ghosts, mean_hold_s=self._traffic.mean_hold_s)

    def _lets(self, submissions: Sequence[Submission], now: float) -> tuple[int, float]:
        """How many of them, from the front, the pool's pace lets go now, and when the next could; inf: it holds nobody back."""
        if (pace := self._pace) is None or not submissions:
            return len(submissions), math.inf
        wants = ((one.priority, one.cost.prompt_tokens) for one in submissions)
        return self._prefills.lets(wants, now, pace)

    def _on_verdicts(self, verdicts: Verdicts, newcomers: list[Waiter[Place]], *, room_at: float) -> None:
        """`newcomers`: who came before this ask. A line that stops has stopped for all of them, asked for by name or not.
        `room_at`: when the pace lets the next one go; inf: it stopped nobody."""
        asked, self._asked = self._asked or [], None
        now = self._clock.now()
        for waiter in asked[: verdicts.admitted]:
            band = self._bands[waiter.priority]
            late = waiter.judged and now - waiter.arrived > waiter.item.submission.useful_wait_s(self.state)
            if not band.remove(waiter, served=not late):
                self._dirty = True  # it left while we asked: what it was granted goes back with the next ask
            elif late:
                self._drop(waiter, Outcome.DEADLINE)
            else:
                waiter.item.deliver(self._grant(waiter.item.submission, now, waited_s=now - waiter.arrived))
        if verdicts.admitted < len(asked) or room_at < math.inf:
            for waiter in newcomers:
                self._stay_or_go(waiter, now)
        elif self._bands.count:
            self._newcomers += (waiter for waiter in newcomers if waiter.item.verdict is None)
            self._dirty = True
        self._passing = pass_one(asked[verdicts.admitted :], self._ledger.state, self._ledger.total)
        self._dirty = self._dirty or self._passing is not None
        self._ask_again_at = room_at
        if verdicts.ask_again_s is not None:
            self._ask_again_at = min(room_at, now + verdicts.ask_again_s)
        self._settle()

    def _grant(self, submission: Submission, now: float, *, waited_s: float) -> Ticket:
        priority, load = submission.priority, submission.cost.load
        self._in_use[priority] += load
        pace, prefilled_at = self._pace, -math.inf
        if pace is not None:
            prefilled_at = self._prefills.took(submission.cost.prompt_tokens, now, pace)
        self._observer.decided(Outcome.ADMITTED, priority, self.pool, waited_s=waited_s)
        return Ticket(
            pool=self.pool,
            priority=priority,
            cost=submission.cost,
            tenant=self._bands[priority].shares.began(submission.tenant, load, now),
            admitted_at=now,
            waited_s=waited_s,
            on_end=self._on_end,
            prefilled_at=prefilled_at,
            worth_timing=self._goes_by_latency and submission.cost.sequences == 1,
        )

    def _stay_or_go(self, waiter: Waiter[Place], now: float) -> None:
        """The drop policy's word on a newcomer that could not go at once. It is in its queue already, alone or not."""
        item = waiter.item
        if not self._bands[waiter.priority].remove(waiter):
            return
        waiter.judged = True
        if outcome := self._judge(item.submission, now, waits=True):
            item.deliver(self.refuse(outcome, item.submission, waited_s=now - waiter.arrived))
        else:
            self._queue(waiter)

    def _drop(self, waiter: Waiter[Place], outcome: Outcome) -> None:
        self._bands[waiter.priority].remove(waiter)
        self._dirty = True
        waited_s = self._clock.now() - waiter.arrived
        waiter.item.deliver(self.refuse(outcome, waiter.item.submission, waited_s=waited_s))

    def _leave(self, waiter: Waiter[Place], *, ghost: bool) -> None:
        """The client, or Envoy, is gone before it heard a verdict."""
        verdict = waiter.item.verdict
        if isinstance(verdict, Ticket):
            verdict.end(End.GHOST if ghost else End.IGNORED)
        elif self._bands[waiter.priority].remove(waiter):
            waited_s = self._clock.now() - waiter.arrived
            self._observer.decided(Outcome.CLIENT_GONE, waiter.priority, self.pool, waited_s=waited_s)
            if ghost:
                self._new_ghosts += waiter.load
            self._dirty = True
            self._settle()

    def _on_end(self, ticket: Ticket, how: End) -> None:
        load, now = ticket.cost.load, self._clock.now()
        held_s = now - ticket.admitted_at
        self._in_use[ticket.priority] = self._in_use[ticket.priority] - load
        self._bands[ticket.priority].shares.ended(ticket.tenant, load)
        if how is End.GHOST:
            self._new_ghosts += load
        else:
            self._traffic.ended(load, held_s)
        if how is not End.GHOST and (pace := self._pace) is not None:
            self._prefills.over(ticket.cost.prompt_tokens, ticket.prefilled_at, now, pace)
        if how is End.COMPLETED:
            self._traffic.finished(Latency(held_s, ticket.ttft_s, ticket.tpot_s))
        self._observer.ended(how, ticket.priority, self.pool, held_s=held_s)
        if not self._at_once():
            self._dirty = True
            self._settle()

    def _on_wake(self) -> None:
        self._dirty = self._dirty or self._bands.count > 0
        self._settle()

    def _on_alarm(self) -> None:
        if self._clock.now() >= self._ask_again_at:
            self._dirty = True
        self._settle()
