"""Quotas in admission: refused from headers, reserved before the queue, given back where nobody was served. Virtual time."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from extproc.admission import Admission, Candidate, Pass
from extproc.config import parse_policy
from extproc.model import Allowance, End, Outcome, Priority, Rejection
from extproc.request import RequestHead
from extproc.state.local import LocalQuota
from extproc.tenants import Tenants, tenant_of
from extproc.tickets import Ticket, Waiting
from tests.support.pools import Pool, limited
from tests.support.virtual import virtual

QUOTA = """
tenants: [{name: team-a, quota: {tokensPerMinute: 600, requestsPerMinute: 5}}, {name: team-b}]
trust: {headers: [x-tenant-id]}
queues:
  - {priority: 0, name: q0, maxQueueSize: 5, timeout: 8s}
  - {priority: 1, name: q1, maxQueueSize: 5, timeout: 8s}
  - {priority: 2, name: q2, maxQueueSize: 5, timeout: 8s}
"""
BODY = {"prompt": "x" * 400, "max_tokens": 50}
"""150 tokens, of which four requests fill the quota."""


class Gateway:
    def __init__(self, slots: float = 10, policy: str = QUOTA, more: str = "") -> None:
        self.pool = Pool(limited(slots=slots), parse_policy(policy + more))
        self.quota = LocalQuota(self.pool.clock)
        names = [pool.name for pool in self.pool.policy.pools]
        dispatchers = dict.fromkeys(names, self.pool.dispatcher)
        self.admission = Admission(self.pool.policy, dispatchers, self.pool.seen, quota=self.quota)

    def arrive(self, tenant: str = "team-a") -> Candidate | Pass | Rejection:
        sent = {"content-type": "application/json", "content-length": "450", "x-tenant-id": tenant}
        return self.admission.arrive(RequestHead("POST", "/v1/chat/completions", sent))

    def post(self, tenant: str = "team-a", **more: object) -> Ticket | Waiting | Rejection | Pass:
        arrived = self.arrive(tenant)
        if not isinstance(arrived, Candidate):
            return arrived
        return self.admission.decide(arrived, json.dumps(BODY | more).encode())

    def ticket(self, tenant: str = "team-a") -> Ticket:
        answer = self.post(tenant)
        assert isinstance(answer, Ticket), answer
        return answer

    def waiting(self) -> Waiting:
        answer = self.post()
        assert isinstance(answer, Waiting), answer
        return answer

    def refused(self, outcome: Outcome = Outcome.QUOTA) -> Rejection:
        answer = self.post()
        assert isinstance(answer, Rejection), answer
        assert answer.outcome is outcome
        return answer

    @property
    def left(self) -> tuple[int, int]:
        """Tokens and requests of team-a."""
        tokens, requests = self.quota.left(tenant_of(self.pool.policy.tenants[0]))
        return round(tokens), round(requests)


@virtual
async def test_what_is_above_the_quota_is_told_when_enough_has_refilled() -> None:
    gateway = Gateway()
    for _ in range(4):
        gateway.ticket()
    refused = gateway.refused()
    assert refused.retry_after_s == pytest.approx(1), "one token is back after 0.1 s; nobody is told less than a second"
    assert (refused.priority, refused.pool) == (Priority.P1, "default")
    await asyncio.sleep(1)
    refused = gateway.refused()
    assert refused.retry_after_s == pytest.approx(14), "for 150 tokens 15 s, of which one is over"
    await asyncio.sleep(14)
    gateway.ticket()
    assert gateway.pool.seen.outcomes == {Outcome.ADMITTED: 5, Outcome.QUOTA: 2}


@virtual
async def test_who_has_nothing_left_is_refused_before_its_body_is_here() -> None:
    gateway = Gateway()
    for _ in range(4):
        gateway.ticket()
    arrived = gateway.arrive()
    assert isinstance(arrived, Rejection)
    assert arrived.outcome is Outcome.QUOTA


@virtual
async def test_nobody_is_told_to_wait_longer_than_clients_believe() -> None:
    gateway = Gateway()
    assert isinstance(gateway.post(prompt="x" * 40_000), Ticket), "more than the whole quota goes when nothing is owed"
    assert gateway.refused().retry_after_s == 60


@virtual
async def test_a_tenant_without_a_quota_asks_nobody() -> None:
    gateway = Gateway()

    def never(*_: object) -> float:
        raise AssertionError("asked")

    gateway.quota.wait_s = never  # type: ignore[method-assign, assignment]
    gateway.ticket("team-b")
    gateway.ticket("unheard-of")


@virtual
async def test_a_request_that_waits_has_reserved_and_gets_it_back_when_its_time_is_over() -> None:
    gateway = Gateway(slots=1)
    gateway.ticket()
    waiting = gateway.waiting()
    assert gateway.left == (300, 3)
    verdict = await waiting.verdict
    assert isinstance(verdict, Rejection)
    assert verdict.outcome is Outcome.QUEUE_TIMEOUT
    await asyncio.sleep(0)
    assert gateway.left == (300 + 150 + 80, 4 + 1), "its own, and what 8 s refill"


@virtual
async def test_a_full_queue_costs_its_tenant_nothing() -> None:
    gateway = Gateway(slots=1, policy=QUOTA.replace("maxQueueSize: 5", "maxQueueSize: 0"))
    gateway.ticket()
    before = gateway.left
    assert gateway.refused(Outcome.SHED).retry_after_s is not None
    assert gateway.left == before


@virtual
@pytest.mark.parametrize(("ghost", "left"), [(False, (450, 4)), (True, (300, 3))])
async def test_a_client_that_leaves_the_queue_gets_it_back_unless_envoy_may_have_let_it_pass(
    ghost: bool, left: tuple[int, int]
) -> None:
    gateway = Gateway(slots=1)
    gateway.ticket()
    waiting = gateway.waiting()
    waiting.leave(ghost=ghost)
    waiting.leave(ghost=ghost)
    assert gateway.left == left


@virtual
async def test_a_client_that_left_as_it_was_let_in_gets_it_back_once() -> None:
    gateway = Gateway(slots=1)
    first, waiting = gateway.ticket(), gateway.waiting()
    first.end(End.COMPLETED)
    assert isinstance(await waiting.verdict, Ticket)
    waiting.leave(ghost=False)
    waiting.leave(ghost=False)
    assert gateway.left == (450, 4)


@virtual
@pytest.mark.parametrize(
    ("end", "left"),
    [(End.COMPLETED, (450, 4)), (End.IGNORED, (450, 4)), (End.GHOST, (450, 4)), (End.DROPPED, (600, 5))],
)
async def test_only_what_the_engine_failed_to_answer_comes_back_at_the_end(end: End, left: tuple[int, int]) -> None:
    gateway = Gateway()
    ticket = gateway.ticket()
    ticket.end(end)
    ticket.end(end)
    assert gateway.left == left


@virtual
async def test_a_request_that_waited_is_followed_to_its_end_as_well() -> None:
    gateway = Gateway(slots=1)
    first, waiting = gateway.ticket(), gateway.waiting()
    first.end(End.COMPLETED)
    await asyncio.wait({waiting.verdict})  # as a stream does
    ticket = waiting.verdict.result()
    assert isinstance(ticket, Ticket)
    ticket.end(End.DROPPED)
    assert gateway.left == (450, 4)


@virtual
async def test_what_a_rule_on_the_body_may_let_pass_is_not_refused_from_headers() -> None:
    bypass = "classification: [{when: {model: free}, bypass: true}]"
    gateway = Gateway(more=bypass)
    for _ in range(4):
        gateway.ticket()
    assert isinstance(gateway.post(model="free"), Pass)
    gateway.refused()


@virtual
async def test_with_the_pool_not_known_yet_a_refusal_from_headers_names_none() -> None:
    gateway = Gateway(more="pools: [{name: a, models: [m]}, {name: b, models: [n]}]")
    for _ in range(4):
        assert isinstance(gateway.post(model="m"), Ticket)
    refused = gateway.refused()
    assert (refused.priority, refused.pool) == (None, "")


def test_a_policys_quota_becomes_rates_per_second() -> None:
    policy = parse_policy("tenants: [{name: default, quota: {tokensPerMinute: 600, burst: 10s}}]")
    tenant = Tenants(policy).resolve(RequestHead("POST", "/", {}))
    assert tenant is not None
    assert tenant.quota == Allowance(tokens_per_s=10, burst_s=10)


@virtual
async def test_a_length_that_a_client_only_announces_owes_no_more_than_an_engine_holds() -> None:
    gateway = Gateway()
    gateway.pool.ledger.publish(replace(gateway.pool.ledger.state, engine_max_tokens=1000))
    sent = {"content-type": "application/json", "content-length": "999999999999", "x-tenant-id": "team-a"}
    arrived = gateway.admission.arrive(RequestHead("POST", "/v1/chat/completions", sent))
    assert isinstance(arrived, Candidate)
    assert isinstance(gateway.admission.decide(arrived, None), Ticket)
    assert gateway.left[0] == 0
    await asyncio.sleep(41)
    assert gateway.left[0] == 10, "of 1000 tokens, 100 s of 600 a minute, the burst pays 60"
