"""A ledger that answers a little later, as one over a network does: the dispatcher must not take its newcomers for a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from extproc.clock import LoopClock
from extproc.config import parse_policy
from extproc.dispatcher import Dispatcher
from extproc.identity import Sender
from extproc.levels import Levels
from extproc.model import NOTHING, Cost, End, Load, Outcome, Pace, PoolState, Priority, Rejection
from extproc.ports import Ask, Verdicts
from extproc.state.local import LocalLedger
from extproc.submission import Submission
from extproc.tickets import Ticket, Waiting
from tests.support.observing import Remembering
from tests.support.pools import limited
from tests.support.virtual import virtual

P0, P1, P2 = Priority
ROUND_TRIP_S = 0.001


class SlowLedger(LocalLedger):
    """Answers after a round trip. `asks`: how many at once are on their way must never be more than one."""

    def __init__(self, initial: PoolState, clock: LoopClock) -> None:
        super().__init__(initial, clock)
        self._loop_clock = clock
        self.flying = 0
        self.asks = 0

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        assert self.flying == 0
        self.flying += 1
        self.asks += 1

        def answer() -> None:
            self.flying -= 1
            super(SlowLedger, self).ask(ask, reply)

        self._loop_clock.call_at(self._loop_clock.now() + ROUND_TRIP_S, answer)

    def at_once(self, ask: Ask) -> None:
        return None


class SlowPool:
    def __init__(self, state: PoolState) -> None:
        clock = LoopClock(asyncio.get_running_loop())
        self.ledger = SlowLedger(state, clock)
        self.seen = Remembering()
        self.policy = parse_policy("{}")
        self.dispatcher = Dispatcher(
            self.policy.pools[0],
            self.policy.queues,
            retry=self.policy.retry_after,
            longest_wait_s=299,
            ledger=self.ledger,
            clock=clock,
            observer=self.seen,
            levels=Levels(b""),
            wall=clock.now,
            new_future=asyncio.get_running_loop().create_future,
        )

    def use_again(self) -> None:
        """Its policy anew."""
        retry = self.policy.retry_after
        self.dispatcher.use(self.policy.pools[0], self.policy.queues, retry=retry, longest_wait_s=299, secret=b"")

    def send(self, priority: Priority, *, tokens: int = 1) -> Waiting:
        submission = Submission(priority, Cost(tokens, 0))
        sent = self.dispatcher.refuse_on_arrival(submission, lambda: Sender(b"")) or self.dispatcher.submit(submission)
        assert isinstance(sent, Waiting)
        return sent

    async def ticket(self, priority: Priority, *, tokens: int = 1) -> Ticket:
        verdict = await self.send(priority, tokens=tokens).verdict
        assert isinstance(verdict, Ticket)
        return verdict


@virtual
async def test_a_batch_request_beside_an_urgent_one_is_not_taken_for_a_queue() -> None:
    pool = SlowPool(limited(slots=10))
    urgent, batch = pool.send(P0), pool.send(P2)
    assert urgent.soon
    assert batch.soon
    assert isinstance(await urgent.verdict, Ticket)
    assert isinstance(await batch.verdict, Ticket)
    assert pool.seen.outcomes == {Outcome.ADMITTED: 2}


@virtual
async def test_newcomers_on_their_way_share_the_calls() -> None:
    pool = SlowPool(limited(slots=100))
    sent = [pool.send(P1) for _ in range(40)]
    verdicts = await asyncio.gather(*(waiting.verdict for waiting in sent))
    assert all(isinstance(verdict, Ticket) for verdict in verdicts)
    assert pool.ledger.asks <= 5


@virtual
async def test_the_policys_word_reaches_all_that_came_before_the_ask_also_those_it_did_not_name() -> None:
    pool = SlowPool(limited(slots=1))
    first = pool.send(P0)
    assert isinstance(await first.verdict, Ticket)
    urgent = [pool.send(P0) for _ in range(20)]
    batch = [pool.send(P2) for _ in range(30)]
    await asyncio.sleep(5 * ROUND_TRIP_S)
    refused = [waiting.verdict.result() for waiting in batch]
    assert all(isinstance(verdict, Rejection) and verdict.outcome is Outcome.SHED for verdict in refused)
    assert not any(waiting.verdict.done() for waiting in urgent)


@virtual
async def test_a_burst_behind_a_line_that_stands_makes_no_calls() -> None:
    pool = SlowPool(limited(slots=1))
    running = await pool.send(P0).verdict
    waiting = pool.send(P0)
    await asyncio.sleep(5 * ROUND_TRIP_S)
    before = pool.ledger.asks
    burst = [pool.send(P0) for _ in range(50)]
    await asyncio.sleep(5 * ROUND_TRIP_S)
    assert pool.ledger.asks == before
    for one in (waiting, *burst):
        assert isinstance(running, Ticket)
        running.end(End.COMPLETED)
        running = await one.verdict


@virtual
async def test_the_pace_asks_for_nobody_again_whom_the_limit_stops() -> None:
    """It counted those before them as gone, was about to have room for the next, and asked for all every other millisecond."""
    state = replace(limited(slots=1), pace=Pace(1000.0, (300.0, 200.0, 100.0)))
    pool = SlowPool(state)
    await pool.ticket(P0, tokens=10)
    await asyncio.sleep(1)
    pool.send(P1, tokens=120)
    pool.send(P1, tokens=81)
    await asyncio.sleep(0.5)
    before = pool.ledger.asks
    await asyncio.sleep(0.5)
    assert pool.ledger.asks == before


@virtual
async def test_who_comes_while_we_tell_of_an_end_passes_a_large_one_that_still_does_not_fit() -> None:
    """By what was known when it came it did not fit, and by the time that was told nobody asked for it."""
    pool = SlowPool(limited(tokens=60))
    await pool.ticket(P0, tokens=30)
    ends = await pool.ticket(P0, tokens=20)
    large = pool.send(P0, tokens=40)
    await asyncio.sleep(5 * ROUND_TRIP_S)
    ends.end(End.COMPLETED)
    small = pool.send(P0, tokens=15)
    await asyncio.sleep(5 * ROUND_TRIP_S)
    assert small.verdict.done()
    assert not large.verdict.done()


@virtual
async def test_who_leaves_while_we_ask_gives_back_what_it_was_granted() -> None:
    pool = SlowPool(limited(slots=1))
    leaver = pool.send(P1)
    leaver.leave(ghost=False)
    stayer = pool.send(P1)
    assert isinstance(await stayer.verdict, Ticket)
    assert sum(load.slots for load in pool.dispatcher.in_use) == 1


@virtual
async def test_what_ends_while_we_ask_is_told_also_where_a_new_policy_comes_before_the_answer() -> None:
    """The new policy made the dispatcher forget that there was something to tell: the slot stayed taken until the next request."""
    pool = SlowPool(limited(slots=2))
    tickets = [await waiting.verdict for waiting in (pool.send(P1), pool.send(P1))]
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        ticket.end(End.COMPLETED)
    pool.use_again()
    await asyncio.sleep(5 * ROUND_TRIP_S)
    assert pool.dispatcher.total.empty


@virtual
async def test_who_comes_while_a_small_one_is_asked_for_alone_is_asked_for_next() -> None:
    """The small one was refused what is reserved, and nobody asked for the line again: a P0 that fitted waited for the next end."""
    reserved = (Load(tokens=20), NOTHING, NOTHING)
    pool = SlowPool(replace(limited(tokens=60), reserved=reserved))
    await pool.ticket(P1, tokens=30)
    large = pool.send(P1, tokens=35)
    await asyncio.sleep(5 * ROUND_TRIP_S)
    small = pool.send(P1, tokens=20)
    await asyncio.sleep(0.5 * ROUND_TRIP_S)
    urgent = pool.send(P0, tokens=25)
    await asyncio.sleep(5 * ROUND_TRIP_S)
    assert urgent.verdict.done()
    assert not large.verdict.done()
    assert not small.verdict.done()
