"""The dispatcher in virtual time, over the local ledger."""

from __future__ import annotations

import asyncio
import math

import pytest
from msgspec.structs import replace

from extproc.model import End, Load, Outcome, Pace, Priority, Rejection
from extproc.queues.bands import MOST_PASSES
from extproc.sim.virtual_time import VirtualTimeLoop
from extproc.tickets import Ticket, Waiting
from tests.support.crowd import TENANTS, admitted
from tests.support.pools import Pool, limited, reserving
from tests.support.virtual import virtual
from tests.support.waves import peak_over_mean, peak_over_mean_of_seconds

P0, P1, P2 = Priority

ALL_TAIL = """
queues:
  - {priority: 0, name: zero, maxQueueSize: 200, timeout: 8s}
  - {priority: 1, name: one, maxQueueSize: 500, timeout: 15s}
  - {priority: 2, name: two, maxQueueSize: 1000, timeout: 60s}
"""

SHORT_TAIL = """
queues:
  - {priority: 0, name: zero, maxQueueSize: 4, timeout: 8s}
  - {priority: 1, name: one, maxQueueSize: 4, timeout: 15s, dropPolicy: tail}
  - {priority: 2, name: two, maxQueueSize: 4, timeout: 60s, dropPolicy: tail}
"""
_, LIGHT, HEAVY = TENANTS


@virtual
async def test_a_free_pool_admits_at_once() -> None:
    pool = Pool(limited(slots=2))
    pool.ticket()
    pool.ticket()
    assert pool.slots_in_use == 2
    assert pool.seen.outcomes == {Outcome.ADMITTED: 2}


@virtual
async def test_an_end_lets_the_next_in_within_the_same_instant() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    first = pool.ticket()
    second = pool.waiting()
    await asyncio.sleep(3)
    first.end(End.COMPLETED)
    assert second.verdict.done()
    ticket = second.verdict.result()
    assert isinstance(ticket, Ticket)
    assert ticket.waited_s == 3
    assert pool.slots_in_use == 1


@virtual
async def test_a_ticket_ends_once_however_often_it_is_ended() -> None:
    pool = Pool(limited(slots=2))
    ticket = pool.ticket()
    assert ticket.end(End.COMPLETED)
    assert not ticket.end(End.DROPPED)
    assert pool.slots_in_use == 0
    assert pool.seen.ends == {End.COMPLETED: 1}


@virtual
async def test_priorities_are_strict_and_first_come_within_one() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    running = pool.ticket()
    sent = [(name, pool.waiting(priority)) for name, priority in [("c", P2), ("b", P1), ("a1", P0), ("a2", P0)]]
    order = []
    for _ in sent:
        running.end(End.COMPLETED)
        [(name, waiting)] = [(n, w) for n, w in sent if w.verdict.done() and n not in order]
        order.append(name)
        running = waiting.verdict.result()  # type: ignore[assignment]
    assert order == ["a1", "a2", "b", "c"]


@virtual
async def test_never_more_than_the_limit_whatever_the_order_of_ends_and_leaves() -> None:
    pool = Pool(limited(slots=4), ALL_TAIL)
    tickets = [pool.ticket() for _ in range(4)]
    waiters = [pool.waiting(Priority(i % 3)) for i in range(60)]
    most = 0
    while tickets:
        tickets.pop(0).end(End.COMPLETED)
        if waiters:
            waiters.pop().leave(ghost=False)
        granted = [w for w in waiters if w.verdict.done()]
        waiters = [w for w in waiters if not w.verdict.done()]
        tickets += [w.verdict.result() for w in granted]  # type: ignore[misc]
        most = max(most, len(tickets))
        assert pool.slots_in_use == len(tickets)
    assert most == 4
    assert pool.slots_in_use == 0
    assert pool.dispatcher.bands.count == 0


@virtual
async def test_who_leaves_the_queue_is_gone_from_it_and_never_admitted() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    running = pool.ticket()
    leaver, stayer = pool.waiting(), pool.waiting()
    leaver.leave(ghost=False)
    leaver.leave(ghost=False)
    assert pool.seen.outcomes[Outcome.CLIENT_GONE] == 1
    running.end(End.COMPLETED)
    assert not leaver.verdict.done()
    assert stayer.verdict.done()


@virtual
async def test_a_ticket_granted_but_not_delivered_is_given_back() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    running = pool.ticket()
    waiting = pool.waiting()
    running.end(End.COMPLETED)
    waiting.leave(ghost=False)
    assert pool.slots_in_use == 0
    assert pool.seen.ends[End.IGNORED] == 1


@virtual
async def test_a_full_queue_refuses_the_newcomer() -> None:
    pool = Pool(limited(slots=1), "queues: [{priority: P1, name: one, maxQueueSize: 2, timeout: 15s}]")
    pool.ticket()
    pool.waiting()
    pool.waiting()
    refusal = pool.refused()
    assert refusal.outcome is Outcome.QUEUE_FULL
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s >= 1


@virtual
async def test_a_queue_of_size_zero_admits_while_there_is_room_and_never_queues() -> None:
    pool = Pool(limited(slots=1), "queues: [{priority: P1, name: one, maxQueueSize: 0, timeout: 15s}]")
    pool.ticket()
    assert pool.refused().outcome is Outcome.SHED


@virtual
async def test_a_queue_is_bounded_in_bytes_too() -> None:
    pool = Pool(
        limited(slots=1), "queues: [{priority: P1, name: one, maxQueueSize: 9, timeout: 15s, maxQueueBytes: 100}]"
    )
    pool.ticket()
    pool.send(body_bytes=60)
    refusal = pool.send(body_bytes=60)
    assert isinstance(refusal, Rejection)
    assert refusal.outcome is Outcome.QUEUE_FULL


@virtual
async def test_a_wait_ends_at_the_queues_time_out() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    pool.ticket()
    waiting = pool.waiting(P0)
    assert waiting.longest_wait_s == 8
    verdict = await waiting.verdict
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.QUEUE_TIMEOUT
    assert asyncio.get_running_loop().time() == 8


@virtual
async def test_a_wait_ends_before_the_clients_patience_and_before_envoys_maximum() -> None:
    policy = ALL_TAIL + "envoy: {maxMessageTimeout: 6s}"
    pool = Pool(limited(slots=1), policy)
    pool.ticket()
    assert pool.waiting(P0, patience_s=2).longest_wait_s == 1.9
    assert pool.waiting(P0).longest_wait_s == 5


@virtual
async def test_who_could_not_be_served_in_time_is_told_at_once() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    for _ in range(4):
        ticket = pool.ticket()
        await asyncio.sleep(10)
        ticket.end(End.COMPLETED)
    pool.ticket()
    pool.waiting()
    assert pool.refused(patience_s=5).outcome is Outcome.DEADLINE


@virtual
async def test_who_has_waited_as_long_as_its_client_allows_is_told_so() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    pool.ticket()
    verdict = await pool.waiting(P0, patience_s=2).verdict
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.DEADLINE
    assert asyncio.get_running_loop().time() == 1.9


@virtual
async def test_the_time_to_a_first_token_is_kept_free_of_waiting() -> None:
    pool = Pool(replace(limited(slots=1), expected_ttft_s=1.5), ALL_TAIL)
    pool.ticket()
    assert pool.waiting(P0, patience_s=5).longest_wait_s == 3.25
    assert pool.waiting(P0, patience_s=60).longest_wait_s == 8


@virtual
async def test_who_need_not_wait_takes_its_chance_with_slow_engines() -> None:
    pool = Pool(replace(limited(slots=1), expected_ttft_s=5.0), ALL_TAIL)
    assert isinstance(pool.send(patience_s=2), Ticket)
    assert pool.refused(patience_s=2).outcome is Outcome.DEADLINE


@virtual
async def test_at_its_turn_a_request_whose_time_no_longer_suffices_is_refused_and_the_next_goes() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    first = pool.ticket()
    short, long = pool.waiting(patience_s=6), pool.waiting(patience_s=60)
    await asyncio.sleep(3)
    pool.ledger.publish(replace(pool.ledger.state, expected_ttft_s=4.0))
    assert not short.verdict.done()
    first.end(End.COMPLETED)
    refused, admitted = await short.verdict, await long.verdict
    assert isinstance(refused, Rejection)
    assert refused.outcome is Outcome.DEADLINE
    assert isinstance(admitted, Ticket)
    assert pool.slots_in_use == 1
    assert pool.dispatcher.total == Load(1, 1)
    assert pool.seen.outcomes == {Outcome.ADMITTED: 2, Outcome.DEADLINE: 1}


@virtual
async def test_no_request_enters_whose_client_has_given_up() -> None:
    """Capacity frees in the very instant in which a late loop finds the client's time over."""
    pool = Pool(limited(slots=1), ALL_TAIL)
    first = pool.ticket()
    waiting = pool.waiting(patience_s=2)
    await asyncio.sleep(1.8)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stall(0.2)
    first.end(End.COMPLETED)
    verdict = await waiting.verdict
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.DEADLINE


@virtual
async def test_fast_reject_never_waits_under_pressure() -> None:
    pool = Pool(limited(slots=4))
    for _ in range(4):
        pool.ticket(P2)
    assert pool.refused(P2).outcome is Outcome.SHED


@virtual
async def test_fast_reject_waits_while_there_is_no_pressure_and_goes_when_there_is() -> None:
    pool = Pool(reserving(limited(slots=10), p0=6))
    for _ in range(4):
        pool.ticket(P2)
    waiting = pool.waiting(P2)
    for _ in range(4):
        pool.ticket(P0)
    assert isinstance(verdict := await waiting.verdict, Rejection)
    assert verdict.outcome is Outcome.EARLY_DROP
    assert asyncio.get_running_loop().time() == 0


@virtual
async def test_a_published_state_reaches_the_waiters_at_once() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    pool.ticket()
    waiting = pool.waiting()
    pool.ledger.publish(limited(slots=2))
    assert waiting.verdict.done()


@virtual
async def test_a_falling_limit_admits_nobody_until_enough_have_ended() -> None:
    pool = Pool(limited(slots=3), ALL_TAIL)
    tickets = [pool.ticket() for _ in range(3)]
    waiting = pool.waiting()
    pool.ledger.publish(limited(slots=1))
    tickets[0].end(End.COMPLETED)
    tickets[1].end(End.COMPLETED)
    assert not waiting.verdict.done()
    tickets[2].end(End.COMPLETED)
    assert waiting.verdict.done()


@virtual
async def test_the_rejection_rate_refuses_its_share_and_spares_who_has_none() -> None:
    pool = Pool(replace(limited(slots=10_000), rejection=(0.0, 0.3, 1.0)))
    for _ in range(1000):
        for priority in Priority:
            pool.send(priority)
    shed = {p: pool.seen.by_priority[Outcome.SHED, p] for p in Priority}
    assert shed[P0] == 0
    assert 230 < shed[P1] < 370
    assert shed[P2] == 1000


@virtual
async def test_a_retry_meets_the_verdict_of_its_first_attempt_for_as_long_as_the_rate_holds() -> None:
    pool = Pool(replace(limited(slots=10_000), rejection=(0.0, 0.3, 0.3)))
    keys = [b"client %d" % i for i in range(200)]
    first = [isinstance(pool.send(P1, who=key), Rejection) for key in keys]
    await asyncio.sleep(3)
    again = [isinstance(pool.send(P1, who=key), Rejection) for key in keys]
    assert sum(a is not b for a, b in zip(first, again, strict=True)) <= 15, "their minute ended, at 1 in 20 of them"


@virtual
async def test_a_session_that_sends_half_of_all_is_refused_at_the_rate_and_no_more() -> None:
    for name in range(5):
        pool = Pool(replace(limited(slots=1e6), rejection=(0.0, 0.3, 0.3)))
        for _ in range(60 * 20):
            pool.send(P1, who=b"session %d" % name)
            pool.send(P1)
            await asyncio.sleep(0.05)
        assert abs(pool.seen.outcomes[Outcome.SHED] / 2400 - 0.3) < 0.05


async def draining(pool: Pool, tokens_per_s: int) -> None:
    """From now on so many tokens end per second: what is held, held for the mean of two seconds."""
    for _ in range(4):
        ended = pool.ticket(tokens=500)
        await asyncio.sleep(2)
        ended.end(End.COMPLETED)
    pool.ticket(tokens=2 * tokens_per_s)


@pytest.mark.parametrize("tokens_per_s", [5_000, 50_000, 500_000])
@virtual
async def test_a_thousand_obedient_clients_refused_in_one_second_come_back_in_no_wave(tokens_per_s: int) -> None:
    """Whether they read milliseconds or whole seconds, and whether a minute is long enough for a fifth of the drain or not."""
    pool, loop = Pool(limited(slots=1e6)), asyncio.get_running_loop()
    back: list[float] = []

    def come_back() -> None:
        back.append(loop.time())
        pool.ticket(tokens=500)

    await draining(pool, tokens_per_s)
    pool.ledger.publish(replace(pool.ledger.state, rejection=(1.0, 1.0, 1.0)))
    told: list[tuple[float, float]] = []
    for _ in range(1000):
        after_s = pool.refused(tokens=500).retry_after_s
        assert after_s is not None
        told.append((loop.time(), after_s))
        loop.call_later(after_s, come_back)
        await asyncio.sleep(0.001)
    pool.ledger.publish(replace(pool.ledger.state, rejection=(0.0, 0.0, 0.0)))
    await asyncio.sleep(61)
    assert len(back) == 1000
    assert peak_over_mean(back) <= 1.3
    assert peak_over_mean_of_seconds(at + math.ceil(after_s) for at, after_s in told) <= 1.3
    assert min(after_s for _, after_s in told) >= 2.4
    assert max(after_s for _, after_s in told) <= 60


@virtual
async def test_what_is_shown_is_what_the_next_one_refused_is_told() -> None:
    pool = Pool(limited(slots=1e6))
    assert pool.dispatcher.retry_after_s(P1) == pytest.approx(3)
    await draining(pool, 50_000)
    pool.ledger.publish(replace(pool.ledger.state, rejection=(1.0, 1.0, 1.0)))
    for _ in range(200):
        pool.refused(tokens=500)
    assert pool.refused(tokens=500).retry_after_s == pytest.approx(pool.dispatcher.retry_after_s(P1), abs=0.5)
    assert pool.dispatcher.retry_after_s(P1) > 10


@virtual
async def test_reserved_slots_are_for_their_priority_and_those_above() -> None:
    pool = Pool(reserving(limited(slots=4), p0=1, p1=1), ALL_TAIL)
    pool.ticket(P2)
    pool.ticket(P2)
    pool.waiting(P2)
    pool.ticket(P1)
    pool.waiting(P1)
    pool.ticket(P0)


@virtual
async def test_a_higher_priority_in_its_reserve_does_not_lock_the_others_out_of_theirs() -> None:
    pool = Pool(reserving(limited(slots=4), p0=2), ALL_TAIL)
    pool.ticket(P0)
    pool.ticket(P0)
    pool.ticket(P1)
    pool.ticket(P1)
    pool.waiting(P1)


@virtual
async def test_tokens_bind_as_slots_do() -> None:
    pool = Pool(limited(tokens=1000), ALL_TAIL)
    big = pool.ticket(tokens=900)
    waiting = pool.waiting(tokens=200)
    big.end(End.COMPLETED)
    assert waiting.verdict.done()


@virtual
async def test_a_request_larger_than_the_limit_goes_alone() -> None:
    pool = Pool(limited(tokens=1000), ALL_TAIL)
    small = pool.ticket(tokens=10)
    large = pool.waiting(tokens=5000)
    small.end(End.COMPLETED)
    assert large.verdict.done()
    pool.waiting(tokens=10)


@virtual
async def test_small_ones_pass_a_large_one_at_the_head_but_not_for_ever() -> None:
    pool = Pool(limited(tokens=1000), ALL_TAIL)
    pool.ticket(tokens=500)
    large = pool.waiting(tokens=900)
    small = [pool.send(tokens=10) for _ in range(2 * MOST_PASSES)]
    gone = [one for one in small if isinstance(one, Ticket)]
    assert len(gone) == MOST_PASSES
    for ticket in gone:
        ticket.end(End.COMPLETED)
    assert not large.verdict.done()
    assert not any(one.verdict.done() for one in small if isinstance(one, Waiting))


@virtual
async def test_who_waited_behind_one_that_makes_room_for_a_newcomer_goes_at_once() -> None:
    pool = Pool(limited(slots=10, tokens=10), SHORT_TAIL.replace("maxQueueSize: 4", "maxQueueSize: 2"))
    pool.ticket(tokens=5)
    large = pool.send(tokens=8, tenant=LIGHT)
    for _ in range(MOST_PASSES):
        pool.ticket(tokens=3).end(End.COMPLETED)
    small = pool.waiting(tokens=3)
    newcomer = pool.send(tokens=9, tenant=HEAVY)
    assert isinstance(large, Waiting)
    assert isinstance(large.verdict.result(), Rejection)
    assert admitted(small) is not None
    assert isinstance(newcomer, Waiting)


@virtual
async def test_nobody_passes_a_head_that_waits_for_a_slot() -> None:
    pool = Pool(limited(tokens=1000, slots=1), ALL_TAIL)
    pool.ticket(tokens=500)
    pool.waiting(tokens=900)
    assert not pool.waiting(tokens=10).verdict.done()


@virtual
async def test_ghost_load_holds_its_place_and_goes_with_the_drain() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    for _ in range(4):
        ticket = pool.ticket()
        await asyncio.sleep(2)
        ticket.end(End.COMPLETED)
    pool.ticket().end(End.GHOST)
    assert pool.slots_in_use == 0
    waiting = pool.waiting(P0)
    start = asyncio.get_running_loop().time()
    assert isinstance(await waiting.verdict, Ticket)
    assert 1.0 < asyncio.get_running_loop().time() - start < 2.0


@virtual
async def test_a_waiter_that_envoy_let_pass_becomes_ghost_load() -> None:
    pool = Pool(limited(slots=2), ALL_TAIL)
    pool.ticket()
    second = pool.ticket()
    waiting = pool.waiting()
    waiting.leave(ghost=True)
    second.end(End.COMPLETED)
    assert isinstance(pool.send(P0), Ticket) is False


@virtual
async def test_draining_answers_who_waits_and_who_comes_and_follows_who_runs() -> None:
    pool = Pool(limited(slots=1), ALL_TAIL)
    running = pool.ticket()
    waiting = pool.waiting()
    pool.dispatcher.drain()
    verdict = waiting.verdict.result()
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.DRAINING
    assert verdict.retry_after_s is not None
    assert 1 <= verdict.retry_after_s <= 3
    assert pool.refused().outcome is Outcome.DRAINING
    assert pool.slots_in_use == 1
    running.end(End.COMPLETED)
    assert pool.slots_in_use == 0


@virtual
async def test_under_pressure_a_standing_queue_keeps_waits_near_its_target() -> None:
    """P1 with three times the load the pool drains: the admitted wait about a second or two, nobody fifteen."""
    pool = Pool(limited(slots=10))
    loop = asyncio.get_running_loop()
    waits: list[float] = []

    async def one() -> None:
        sent = pool.send(P1)
        verdict = await sent.verdict if not isinstance(sent, Ticket | Rejection) else sent
        if isinstance(verdict, Ticket):
            waits.append(verdict.waited_s)
            await asyncio.sleep(1)
            verdict.end(End.COMPLETED)

    async with asyncio.TaskGroup() as group:
        while loop.time() < 60:
            group.create_task(one())
            await asyncio.sleep(1 / 30)
    late = waits[len(waits) // 2 :]
    assert max(late) <= 2.1
    assert len(waits) > 10 * 60 * 0.97
    assert pool.slots_in_use == 0


@virtual
async def test_below_the_watermark_p1_waits_as_tail_does() -> None:
    pool = Pool(replace(reserving(limited(slots=10), p0=6), pressure_at=0.8))
    for _ in range(4):
        pool.ticket(P1)
    waiting = pool.waiting(P1)
    assert isinstance(await waiting.verdict, Rejection)
    assert asyncio.get_running_loop().time() == 15


@virtual
async def test_under_pressure_nobody_in_p1_waits_longer_than_its_bound() -> None:
    pool = Pool(limited(slots=1))
    pool.ticket(P1)
    waiting = pool.waiting(P1)
    verdict = await waiting.verdict
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.EARLY_DROP
    assert asyncio.get_running_loop().time() <= 10


@virtual
async def test_ten_thousand_waiters_leaving_in_any_order_leave_nothing_behind() -> None:
    pool = Pool(limited(slots=1), "queues: [{priority: P1, name: one, maxQueueSize: 20000, timeout: 15s}]")
    pool.ticket()
    waiters = [pool.waiting() for _ in range(10_000)]
    for waiting in waiters[::2] + waiters[1::2][::-1]:
        waiting.leave(ghost=False)
    assert pool.dispatcher.bands.count == 0
    assert pool.dispatcher.bands.waiting()[1].slots == 0


PACED = replace(limited(slots=100), pace=Pace(1000.0, (300.0, 200.0, 100.0)), engines_reporting=1)
"""A thousand prompt tokens a second; so many may stand before each priority."""


@virtual
async def test_a_pace_holds_a_burst_back_and_lets_it_go_one_after_the_other() -> None:
    pool = Pool(PACED, ALL_TAIL)
    pool.ticket(P1, tokens=500)
    waiters = [pool.waiting(P1, tokens=150) for _ in range(2)]
    await asyncio.sleep(0.44)
    assert not waiters[0].verdict.done()
    await asyncio.sleep(0.02)
    assert [waiter.verdict.done() for waiter in waiters] == [True, False]
    assert pool.dispatcher.demand(pool.clock.now()).paced
    await asyncio.sleep(0.15)
    assert waiters[1].verdict.done()
    assert not pool.dispatcher.demand(pool.clock.now()).paced


@virtual
async def test_whom_a_limit_holds_back_the_pace_does_not() -> None:
    pool = Pool(replace(PACED, limits=limited(slots=1).limits), ALL_TAIL)
    pool.ticket(P1, tokens=500)
    for _ in range(2):
        pool.waiting(P1, tokens=150)
    for _ in range(10):
        assert not pool.dispatcher.demand(pool.clock.now()).paced
        await asyncio.sleep(0.1)


@virtual
async def test_the_pace_holds_nobody_back_where_nobody_waits() -> None:
    pool = Pool(
        replace(PACED, saturation=1.0), ALL_TAIL.replace("timeout: 60s", "timeout: 60s, dropPolicy: fast-reject")
    )
    pool.ticket(P1, tokens=500)
    pool.refused(P2, tokens=150)
    assert not pool.dispatcher.demand(pool.clock.now()).paced


@virtual
async def test_p0_passes_where_the_pace_holds_back_the_others() -> None:
    pool = Pool(PACED, ALL_TAIL)
    pool.ticket(P2, tokens=250)
    waiting = pool.waiting(P2, tokens=10)
    pool.ticket(P0, tokens=10)
    assert not waiting.verdict.done()


@virtual
async def test_whom_the_pace_holds_back_the_drop_policy_judges() -> None:
    pool = Pool(replace(PACED, saturation=1.0))
    pool.ticket(P2, tokens=250)
    assert pool.refused(P2).outcome is Outcome.SHED


@virtual
async def test_a_limit_that_binds_later_than_the_pace_still_binds() -> None:
    pool = Pool(replace(PACED, limits=limited(slots=1).limits), ALL_TAIL)
    running = pool.ticket(P1, tokens=500)
    waiting = pool.waiting(P1, tokens=10)
    await asyncio.sleep(5)
    assert not waiting.verdict.done()
    running.end(End.COMPLETED)
    assert waiting.verdict.done()


@virtual
@pytest.mark.parametrize("how", [End.COMPLETED, End.IGNORED, End.DROPPED])
async def test_a_prompt_that_was_over_at_once_holds_nobody_back(how: End) -> None:
    """One announced a terabyte to a path that its engine does not know, and for ten seconds P0 heard `deadline`."""
    pool = Pool(PACED, ALL_TAIL)
    liar = pool.ticket(P2, tokens=400_000)
    waiting = pool.waiting(P0, tokens=10)
    liar.end(how)
    assert waiting.verdict.done()
    later = pool.waiting(P1, tokens=10)
    await asyncio.sleep(0.2)
    assert later.verdict.done()


@virtual
async def test_a_prompt_that_may_still_run_is_still_in_the_way() -> None:
    pool = Pool(PACED, ALL_TAIL)
    pool.ticket(P2, tokens=5000).end(End.GHOST)
    waiting = pool.waiting(P0, tokens=10)
    assert not waiting.verdict.done()
