"""One pool's dispatcher: the single writer of its queues and of its asks.

Everything here is synchronous, so that no two decisions interleave: requests come in by `submit`, tickets end, the
ledger answers, a timer fires. Each of these changes the state and then runs `_settle`, which drops whoever's wait is
over and asks the ledger for the rest until nothing more may go. There is no polling.

Who may wait, and what the refused are told, is in `waiters.py`; whom to ask for, in `asks.py`; what is held, in `holds.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from extproc.asks import Asked, Asks
from extproc.clock import Alarm, Clock
from extproc.config import ControllerName, PoolPolicy, QueuePolicy, RetryAfterPolicy
from extproc.holds import Holds
from extproc.identity import Sender
from extproc.levels import Levels
from extproc.model import Demand, End, Finished, Latency, Load, Outcome, Pace, PoolState, Priority, Rejection
from extproc.ports import Ledger, Observer, Verdicts, Want
from extproc.queues.bands import Bands, Waiter
from extproc.submission import Submission
from extproc.tickets import Place, Ticket, Waiting
from extproc.waiters import Waiters


class Dispatcher:
    """`new_future` makes the futures that waiters await; `longest_wait_s`, `levels` and `wall` are the `Waiters`'."""

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
        self._ledger = ledger
        self._clock = clock
        self._observer = observer
        self._new_future = new_future
        self._holds = Holds()
        self._waiters = Waiters(
            pool.name,
            queues,
            retry=retry,
            longest_wait_s=longest_wait_s,
            ledger=ledger,
            holds=self._holds,
            clock=clock,
            observer=observer,
            levels=levels,
            wall=wall,
        )
        self.bands: Bands[Place] = self._waiters.bands
        """For reading only."""
        self._asks = Asks(ledger, self.bands, self._holds)
        self._settling = False
        self._alarm = Alarm(clock, self._on_alarm)
        ledger.on_wake(self._on_wake)

    def refuse_on_arrival(self, submission: Submission, who: Callable[[], Sender]) -> Rejection | None:
        """What can be said before the body is here; the cost in `submission` is a guess. Counts the request as offered. `who`:
        whose request it is, asked for only where some are refused outright."""
        return self._waiters.refuse_on_arrival(submission, who)

    def submit(self, submission: Submission) -> Ticket | Waiting | Rejection:
        """Decides now, or queues. The caller has called `refuse_on_arrival` for this request before."""
        now = self._clock.now()
        if self._waiters.draining:
            return self.refuse(Outcome.DRAINING, submission)
        submission = submission.bounded(self._ledger.state)
        self._holds.traffic.costed(submission.cost.load)
        self.bands[submission.priority].shares.seen(submission.tenant, now)
        blocked = self.bands.blocked(submission.priority)
        if refusal := self._waiters.judge(submission, now, waits=blocked):
            return refusal
        want = Want(submission.priority, submission.cost.load)
        if self._holds.lets([submission], now, self._pace)[0] and self._at_once([want]):
            self.bands[submission.priority].pass_by(submission.tenant, submission.cost.load)
            return self._grant(submission, now, waited_s=0.0)
        waiter, made_room = self._waiters.enqueue(submission, now, judged=blocked)
        self._asks.joined(waiter)
        self._settle(needed=made_room)
        if (place := waiter.item).verdict is not None:
            return place.verdict
        place.future = self._new_future()
        return Waiting(
            verdict=place.future,
            longest_wait_s=max(0.0, waiter.deadline - now),
            on_leave=lambda ghost: self._leave(waiter, ghost=ghost),
            soon=not waiter.judged,
        )

    def refuse(self, outcome: Outcome, submission: Submission) -> Rejection:
        """Counts the refusal and words it."""
        return self._waiters.refuse(outcome, submission)

    def use(
        self,
        pool: PoolPolicy,
        queues: Sequence[QueuePolicy],
        *,
        retry: RetryAfterPolicy,
        longest_wait_s: float,
        secret: bytes,
    ) -> None:
        """A new policy under whoever waits and whatever is held."""
        self._goes_by_latency = ControllerName.VEGAS in pool.controllers
        self._waiters.use(queues, retry=retry, longest_wait_s=longest_wait_s, secret=secret)
        self._settle(needed=self.bands.count > 0)

    def drain(self) -> None:
        """From now on nobody is let in; who waits is answered."""
        waits = self.bands.count > 0
        self._waiters.drain()
        self._settle(needed=waits)

    def demand(self, now: float) -> Demand:
        return self._holds.demand(now, self.bands.waiting(), paced=self._asks.paced)

    def take_latencies(self) -> tuple[Latency, ...]:
        return self._holds.traffic.take_latencies()

    @property
    def finished(self) -> Finished:
        return self._holds.traffic.total

    def retry_after_s(self, priority: Priority) -> float:
        """What a client of the default tenant that is refused now is told, about."""
        return self._waiters.retry_after_s(priority)

    @property
    def in_use(self) -> tuple[Load, Load, Load]:
        return self._holds.in_use

    @property
    def total(self) -> Load:
        """Load in use over all replicas, ghost load included, as the ledger last said."""
        return self._ledger.total

    @property
    def state(self) -> PoolState:
        return self._ledger.state

    @property
    def _pace(self) -> Pace | None:
        """This replica's part of the pool's."""
        pace = self._ledger.state.pace
        return None if pace is None else pace.shared(self._ledger.replicas)

    def _settle(self, *, needed: bool) -> None:
        """Asks while there is something to ask, drops whoever is overdue. `needed`: what happened calls for an ask. Not
        reentrant: inner calls only mark."""
        self._asks.needed |= needed
        if self._settling:
            return
        self._settling = True
        now = self._clock.now()
        try:
            while True:
                if self._asks.due:
                    self._ask(now)
                elif (due_at := self._waiters.drop_overdue(now)) is None:
                    self._asks.needed = True
                else:
                    break
        finally:
            self._settling = False
        self._alarm.by(min(due_at, self._asks.again_at))

    def _at_once(self, wants: Sequence[Want] = ()) -> bool:
        """Where nobody stands in line, and the ledger answers here and now, nobody needs to: True where all wants may go."""
        if self._asks.open or self._settling or self.bands.count:
            return False
        if (verdicts := self._ledger.at_once(self._holds.ask(wants))) is None:
            return False
        self._asks.answered_at_once()
        return verdicts.admitted == len(wants)

    def _ask(self, now: float) -> None:
        asked = self._asks.next(now, self._pace)
        self._ledger.ask(asked.ask, lambda verdicts: self._on_verdicts(asked, verdicts))

    def _on_verdicts(self, asked: Asked[Place], verdicts: Verdicts) -> None:
        now = self._clock.now()
        self._asks.answered()
        for waiter in asked.waiters[: verdicts.admitted]:
            if self._waiters.called(waiter, now):
                waiter.item.deliver(self._grant(waiter.item.submission, now, waited_s=now - waiter.arrived))
            else:
                self._asks.needed = True  # what it was granted goes back with the next ask
        if asked.stops(verdicts.admitted):
            for waiter in asked.newcomers:
                self._asks.needed |= self._waiters.stay_or_go(waiter, now)
        self._asks.acted_on(asked, verdicts, now=now)
        self._settle(needed=False)

    def _grant(self, submission: Submission, now: float, *, waited_s: float) -> Ticket:
        priority, load = submission.priority, submission.cost.load
        prefilled_at = self._holds.began(submission, now, self._pace)
        self._observer.decided(Outcome.ADMITTED, priority, self.pool, waited_s=waited_s)
        return Ticket(
            pool=self.pool,
            priority=priority,
            cost=submission.cost,
            tenant=self.bands[priority].shares.began(submission.tenant, load, now),
            admitted_at=now,
            waited_s=waited_s,
            on_end=self._on_end,
            prefilled_at=prefilled_at,
            worth_timing=self._goes_by_latency and submission.cost.sequences == 1,
        )

    def _leave(self, waiter: Waiter[Place], *, ghost: bool) -> None:
        """The client, or Envoy, is gone before it heard a verdict."""
        verdict = waiter.item.verdict
        if isinstance(verdict, Ticket):
            verdict.end(End.GHOST if ghost else End.IGNORED)
        elif self._waiters.left(waiter):
            if ghost:
                self._holds.add_ghost(waiter.load)
            self._settle(needed=True)

    def _on_end(self, ticket: Ticket, how: End) -> None:
        now = self._clock.now()
        cost, held_s = ticket.cost, now - ticket.admitted_at
        self._holds.ended(ticket.priority, cost.load, how, Latency(held_s, ticket.ttft_s, ticket.tpot_s))
        if how is not End.GHOST and (pace := self._pace) is not None:
            self._holds.prompt_over(cost.prompt_tokens, ticket.prefilled_at, now, pace)
        self.bands[ticket.priority].shares.ended(ticket.tenant, cost.load)
        self._observer.ended(how, ticket.priority, self.pool, held_s=held_s)
        if not self._at_once():
            self._settle(needed=True)

    def _on_wake(self) -> None:
        self._settle(needed=self.bands.count > 0)

    def _on_alarm(self) -> None:
        self._settle(needed=self._clock.now() >= self._asks.again_at)
