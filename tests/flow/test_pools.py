"""A policy changes under load: what is held, waits, and was learned stays; what is new is in force at once. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from extproc.admission import Admission, Candidate, Pass
from extproc.clock import LoopClock
from extproc.config import Policy, parse_policy
from extproc.errors import ConfigError
from extproc.model import End, Outcome, Priority, Rejection
from extproc.pool import Pool
from extproc.pools import Pools
from extproc.request import RequestHead
from extproc.tickets import Ticket, Waiting
from tests.support.observing import Remembering
from tests.support.virtual import virtual

TRUST = "trust: {headers: [x-priority]}"
TAIL = ", ".join(f"{{priority: P{p}, name: q{p}, maxQueueSize: 10, timeout: 8s, dropPolicy: tail}}" for p in (0, 1, 2))


def policy(pools: str = "[{}]", queues: str = TAIL, more: str = TRUST) -> Policy:
    return parse_policy(f"queues: [{queues}]\npools: {pools}\n{more}")


def fixed(requests: int, name: str = "default") -> str:
    return f"[{{name: {name}, fixed: {{limit: {{requests: {requests}}}}}}}]"


class Running:
    """Pools whose loops run, and a client of theirs."""

    def __init__(self, first: Policy) -> None:
        self.seen = Remembering()
        clock = LoopClock(asyncio.get_running_loop())
        self.pools = Pools(first, scrape=True, clock=clock, observer=self.seen, wall=clock.now)

    def use(self, pools: str = "[{}]", queues: str = TAIL, more: str = TRUST) -> None:
        self.pools.use(policy(pools, queues, more))

    def head(self, priority: Priority) -> RequestHead:
        sent = {"content-type": "application/json", "content-length": "100", "x-priority": str(priority)}
        return RequestHead("POST", "/v1/chat/completions", sent)

    def arrive(self, priority: Priority = Priority.P1) -> tuple[Admission, Candidate]:
        """A request whose body is still on its way."""
        admission = self.pools.admission
        arrived = admission.arrive(self.head(priority))
        assert isinstance(arrived, Candidate), arrived
        return admission, arrived

    def send(self, priority: Priority = Priority.P1) -> Ticket | Waiting | Rejection | Pass:
        arrived = self.pools.admission.arrive(self.head(priority))
        return self.pools.admission.decide(arrived, None) if isinstance(arrived, Candidate) else arrived

    def ticket(self) -> Ticket:
        sent = self.send()
        assert isinstance(sent, Ticket), sent
        return sent

    def waiting(self, priority: Priority = Priority.P1) -> Waiting:
        sent = self.send(priority)
        assert isinstance(sent, Waiting), sent
        return sent

    def refused(self) -> Rejection:
        sent = self.send()
        assert isinstance(sent, Rejection), sent
        return sent

    def pool(self, name: str = "default") -> Pool:
        return self.pools._pools[name]

    @property
    def names(self) -> dict[str, bool]:
        """Pools that there are: whether they are leaving."""
        return {pool.name: pool.leaving for pool in self.pools.snapshots()}


@asynccontextmanager
async def running(first: Policy) -> AsyncIterator[Running]:
    made = Running(first)
    task = asyncio.create_task(made.pools.run())
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


def loops() -> list[str]:
    """Names of the tasks that serve pools."""
    return sorted(t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith(("pool ", "scrape ")))


@virtual
async def test_a_higher_limit_lets_waiters_in_at_once() -> None:
    async with running(policy(fixed(1))) as service:
        service.ticket()
        first, second = service.waiting(), service.waiting()
        service.use(fixed(2))
        assert isinstance(first.verdict.result(), Ticket)
        assert not second.verdict.done()


@virtual
async def test_a_lower_limit_takes_nothing_from_anybody() -> None:
    async with running(policy(fixed(3))) as service:
        tickets = [service.ticket() for _ in range(3)]
        service.use(fixed(1))
        waiting = service.waiting()
        for ticket in tickets[:2]:
            ticket.end(End.COMPLETED)
            await asyncio.sleep(0.2)
            assert not waiting.verdict.done()
        tickets[2].end(End.COMPLETED)
        assert isinstance(waiting.verdict.result(), Ticket)


@virtual
async def test_waiters_keep_their_time_out_and_newcomers_get_the_new_one() -> None:
    async with running(policy(fixed(1))) as service:
        service.ticket()
        old = service.waiting()
        service.use(fixed(1), queues=TAIL.replace("8s", "2s"))
        new = service.waiting()
        assert (old.longest_wait_s, new.longest_wait_s) == (8.0, 2.0)
        await asyncio.sleep(2.001)
        assert new.verdict.done()
        assert not old.verdict.done()
        await asyncio.sleep(5.9)
        assert not old.verdict.done()
        await asyncio.sleep(0.1)
        verdict = old.verdict.result()
        assert isinstance(verdict, Rejection)
        assert verdict.outcome is Outcome.QUEUE_TIMEOUT


@virtual
async def test_a_smaller_queue_drops_nobody_and_takes_nobody_until_there_is_room() -> None:
    async with running(policy(fixed(1))) as service:
        ticket = service.ticket()
        waiting = [service.waiting() for _ in range(3)]
        service.use(fixed(1), queues=TAIL.replace("maxQueueSize: 10", "maxQueueSize: 2"))
        assert service.refused().outcome is Outcome.QUEUE_FULL
        assert not any(one.verdict.done() for one in waiting)
        ticket.end(End.COMPLETED)
        assert service.refused().outcome is Outcome.QUEUE_FULL
        waiting[1].leave(ghost=False)
        service.waiting()


@virtual
async def test_a_new_drop_policy_holds_for_those_who_wait_already() -> None:
    async with running(policy(fixed(1))) as service:
        service.ticket()  # at the limit: pressure
        waiting = service.waiting(Priority.P2)
        await asyncio.sleep(1)
        assert not waiting.verdict.done()
        service.use(fixed(1), queues=TAIL.replace("dropPolicy: tail", "dropPolicy: fast-reject"))
        verdict = waiting.verdict.result()
        assert isinstance(verdict, Rejection)
        assert verdict.outcome is Outcome.EARLY_DROP


@virtual
async def test_no_newcomer_waits_longer_than_a_shorter_envoy_maximum() -> None:
    async with running(policy(fixed(1))) as service:
        service.ticket()
        service.use(fixed(1), more=TRUST + "\nenvoy: {maxMessageTimeout: 4s}")
        assert service.waiting().longest_wait_s == 3.0


@virtual
async def test_a_request_keeps_the_classification_it_arrived_under() -> None:
    async with running(policy(fixed(5), more="trust: {headers: [x-priority]}")) as service:
        admission, candidate = service.arrive(Priority.P0)
        service.use(fixed(5), more="trust: {headers: []}")
        ticket = admission.decide(candidate, None)
        assert isinstance(ticket, Ticket)
        assert ticket.priority is Priority.P0
        later = service.send(Priority.P0)
        assert isinstance(later, Ticket)
        assert later.priority is Priority.P1


@virtual
async def test_what_is_held_and_known_of_traffic_survives_a_hundred_policies() -> None:
    async with running(policy(fixed(100))) as service:
        for _ in range(10):
            ticket = service.ticket()
            await asyncio.sleep(0.5)
            ticket.end(End.COMPLETED)
        held = [service.ticket() for _ in range(4)]
        held.pop().end(End.GHOST)
        dispatcher, before = service.pool().dispatcher, service.pools.snapshots()[0]
        for version in range(100):
            service.use(fixed(50 + version))
        after = service.pools.snapshots()[0]
        assert service.pool().dispatcher is dispatcher
        assert after.in_use == before.in_use
        assert after.ghosts == before.ghosts
        assert after.ghosts.slots == 1
        assert after.drain_per_s == before.drain_per_s is not None
        assert after.state.limits[0].slots == 149
        await asyncio.sleep(1)
        assert loops() == ["pool default", "scrape default"]


@virtual
async def test_a_removed_pool_serves_whom_it_has_and_goes() -> None:
    async with running(policy(fixed(1, "old"))) as service:
        ticket, waiting = service.ticket(), service.waiting()
        service.use(fixed(1, "new"))
        assert service.names == {"new": False, "old": True}
        assert service.ticket().pool == "new"
        await asyncio.sleep(1)
        ticket.end(End.COMPLETED)
        granted = waiting.verdict.result()
        assert isinstance(granted, Ticket)
        assert granted.pool == "old"
        await asyncio.sleep(60)
        assert service.names == {"new": False, "old": True}, "a held ticket is never freed by a timer"
        assert loops() == ["pool new", "pool old", "scrape new", "scrape old"]
        granted.end(End.COMPLETED)
        await asyncio.sleep(0.1)
        assert service.names == {"new": False}
        assert loops() == ["pool new", "scrape new"]


@virtual
async def test_a_pool_that_comes_back_before_it_has_gone_still_knows_what_it_holds() -> None:
    async with running(policy(fixed(2, "a"))) as service:
        held = service.ticket()
        service.use(fixed(2, "b"))
        await asyncio.sleep(1)
        service.use(fixed(2, "a"))
        assert service.names == {"a": False, "b": True}
        service.ticket()
        service.waiting()
        await asyncio.sleep(1)
        assert service.names == {"a": False}
        held.end(End.COMPLETED)
        assert len(loops()) == 2


@virtual
async def test_a_pool_that_had_gone_starts_anew() -> None:
    async with running(policy(fixed(2, "a"))) as service:
        for name in ("b", "a"):
            service.use(fixed(2, name))
            await asyncio.sleep(1)
        assert service.names == {"a": False}
        assert loops() == ["pool a", "scrape a"]
        assert service.pools.snapshots()[0].state.at > 1.9, "its loop runs"


@virtual
async def test_a_body_that_arrives_after_its_pool_has_gone_is_told_to_come_again() -> None:
    async with running(policy(fixed(1, "a"))) as service:
        admission, candidate = service.arrive()
        service.use(fixed(1, "b"))
        await asyncio.sleep(1)
        assert service.names == {"b": False}
        verdict = admission.decide(candidate, None)
        assert isinstance(verdict, Rejection)
        assert verdict.outcome is Outcome.DRAINING


@virtual
async def test_draining_answers_those_who_wait_in_pools_old_and_new() -> None:
    async with running(policy(fixed(1, "a"))) as service:
        service.ticket()
        old = service.waiting()
        service.use(fixed(1, "b"))
        service.ticket()
        new = service.waiting()
        service.pools.drain()
        for waiting in (old, new):
            verdict = waiting.verdict.result()
            assert isinstance(verdict, Rejection)
            assert verdict.outcome is Outcome.DRAINING


@virtual
async def test_a_policy_that_cannot_be_put_in_force_changes_nothing_at_all() -> None:
    async with running(policy(fixed(1))) as service:
        service.ticket()
        admission, before = service.pools.admission, service.pools.snapshots()
        with pytest.raises(ConfigError, match="NOWHERE is not set"):
            service.use("[{fixed: {limit: {requests: 9}}, upstreamAuth: 'env:NOWHERE'}, {name: b, models: [m]}]")
        assert service.pools.admission is admission
        assert service.pools.snapshots() == before
        await asyncio.sleep(1)
        assert loops() == ["pool default", "scrape default"]
        service.waiting()


ENGINES = '[{engines: {static: ["127.0.0.1:1"]}}]'


@virtual
async def test_engines_not_asked_yet_are_no_outage() -> None:
    """Not running, so that nobody asks any: only the first second is looked at."""
    service = Running(policy())
    assert service.pools.snapshots()[0].state.reason == "no-engines"
    await asyncio.sleep(100)
    service.use(ENGINES)
    snapshot = service.pools.snapshots()[0]
    assert (snapshot.state.reason, snapshot.state.rejection) == ("starting", (0.0, 0.0, 0.0))
    service.use(ENGINES.replace("]}", ', "127.0.0.1:2"]}'))
    await asyncio.sleep(1.01)
    service.use(ENGINES)
    assert service.pools.snapshots()[0].state.reason == "engines-silent", "and a list that grows is no new beginning"


@virtual
async def test_the_last_good_limit_survives() -> None:
    async with running(policy()) as service:
        controller = service.pool()._controller
        limits = service.pool().ledger.state.limits
        controller.memory = replace(controller.memory, good=limits, engine_max_tokens=4096)
        service.use(more=TRUST + "\nfailure: {capacity: 0.25}")
        assert service.pool()._controller is not controller
        assert service.pool()._controller.memory.good == limits
        assert service.pool().ledger.state.engine_max_tokens == 4096


@pytest.mark.parametrize("pools", ["[{name: a}, {name: b, models: [m]}]", "[{name: b, models: [m]}, {name: a}]"])
def test_pools_are_shown_in_the_policys_order(pools: str) -> None:
    @virtual
    async def run() -> None:
        service = Running(policy("[{name: a, models: [n]}, {name: b}]"))
        service.use(pools)
        assert list(service.names) == [pool.name for pool in service.pools.policy.pools]

    run()


@virtual
async def test_answers_are_timed_from_the_reload_on_that_names_a_controller_that_goes_by_latency() -> None:
    running = Running(policy())
    assert not running.ticket().worth_timing
    running.use("[{controllers: [vegas]}]")
    assert running.ticket().worth_timing
    running.use("[{controllers: [watermark]}]")
    assert not running.ticket().worth_timing
