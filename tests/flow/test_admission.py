"""The order of decisions, from headers to a verdict."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import brotli
import pytest
from msgspec import structs
from msgspec.structs import replace

from extproc.admission import Admission, Candidate, Pass
from extproc.levels import ATTEMPTS
from extproc.model import Api, Cost, End, Load, Outcome, Priority, Rejection
from extproc.request import RequestHead
from extproc.state.local import LocalQuota
from extproc.tickets import Ticket, Waiting
from tests.support.pools import Pool, limited
from tests.support.virtual import virtual

CHAT = "/v1/chat/completions"


class Gateway(Pool):
    """A pool with the admission in front of it."""

    def __init__(self, slots: float = 2, policy: str = "trust: {headers: [x-priority]}") -> None:
        super().__init__(limited(slots=slots), policy)
        self.admission = Admission(
            self.policy, {self.policy.pools[0].name: self.dispatcher}, self.seen, quota=LocalQuota(self.clock)
        )

    def post(self, body: object = None, path: str = CHAT, **headers: str) -> Ticket | Waiting | Rejection | Pass:
        raw = body if isinstance(body, bytes) else json.dumps(body or {"prompt": "x" * 400, "max_tokens": 50}).encode()
        arrived = self.admission.arrive(head(path, length=len(raw), **headers))
        if not isinstance(arrived, Candidate):
            return arrived
        return self.admission.decide(arrived, raw if arrived.wants_body else None)


def head(path: str = CHAT, *, length: int | None = 100, **headers: str) -> RequestHead:
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if length is not None:
        sent["content-length"] = str(length)
    return RequestHead("POST", path, sent)


def wants_body(gateway: Gateway, request: RequestHead) -> bool:
    arrived = gateway.admission.arrive(request)
    assert isinstance(arrived, Candidate)
    return arrived.wants_body


@virtual
async def test_the_cost_comes_from_the_body() -> None:
    ticket = Gateway().post()
    assert isinstance(ticket, Ticket)
    assert ticket.cost == Cost(100, 50)


@virtual
async def test_only_json_of_a_fitting_size_is_shipped() -> None:
    gateway = Gateway(policy="body: {maxBytes: 1000}")
    assert wants_body(gateway, head(length=1000))
    assert not wants_body(gateway, head(length=None))
    assert wants_body(gateway, head(content_type="application/json; charset=utf-8"))
    assert not wants_body(gateway, head(length=1001))
    assert not wants_body(gateway, head(length=0))
    assert not wants_body(gateway, structs.replace(head(), bodiless=True))
    assert not wants_body(gateway, head(content_type="multipart/form-data"))
    assert wants_body(gateway, head(content_encoding="zstd"))
    assert wants_body(gateway, head(content_encoding="identity, X-Gzip"))
    assert not wants_body(gateway, head(content_encoding="compress"))
    assert not wants_body(gateway, head(length=1001, content_encoding="gzip"))
    assert not wants_body(gateway, head(length=None, content_length="nonsense"))


@virtual
async def test_a_body_not_shipped_is_costed_by_its_length() -> None:
    gateway = Gateway()
    assert not_shipped(gateway, head(length=4000)) == Cost(1000, 256)
    assert not_shipped(gateway, head(length=4000, content_encoding="compress")) == Cost(1000, 256)
    assert not_shipped(gateway, head(length=None, content_encoding="gzip")) == Cost(1000, 256)
    assert not_shipped(gateway, head(length=4000, content_encoding="gzip")) == Cost(4000, 256)


def not_shipped(gateway: Gateway, request: RequestHead) -> Cost:
    arrived = gateway.admission.arrive(request)
    assert isinstance(arrived, Candidate)
    ticket = gateway.admission.decide(arrived, None)
    assert isinstance(ticket, Ticket)
    ticket.end(End.COMPLETED)
    return ticket.cost


@virtual
@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress)]
)
async def test_a_compressed_body_costs_what_it_unfolds_to(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    gateway = Gateway()
    body = pack(json.dumps({"prompt": "x" * 4000, "max_tokens": 50, "n": 2}).encode())
    ticket = gateway.post(body, content_encoding=encoding)
    assert isinstance(ticket, Ticket)
    assert ticket.cost == Cost(1000, 50, 2)


@virtual
async def test_what_cannot_be_unfolded_is_the_engines_to_refuse() -> None:
    ticket = Gateway().post(b"no gzip at all".ljust(400), content_encoding="gzip")
    assert isinstance(ticket, Ticket)
    assert ticket.cost == Cost(400, 256)


@virtual
async def test_a_bomb_costs_at_least_what_was_seen_of_it() -> None:
    gateway = Gateway(policy="body: {maxBytes: 100000}")
    ticket = gateway.post(gzip.compress(b'{"prompt": "' + b"x" * 50_000_000 + b'"}', 1), content_encoding="gzip")
    assert isinstance(ticket, Ticket)
    assert ticket.cost.prompt_tokens >= 25_000


@virtual
async def test_a_compressed_body_takes_its_own_bytes_in_the_queue() -> None:
    gateway = Gateway(slots=1)
    gateway.post()
    body = gzip.compress(json.dumps({"prompt": "x" * 4000}).encode())
    assert isinstance(gateway.post(body, content_encoding="gzip"), Waiting)
    assert gateway.dispatcher.bands[Priority.P1].body_bytes == len(body)


@virtual
@pytest.mark.parametrize("body", [b"{", b"\xff", b"[1]", b"null"])
async def test_malformed_bodies_are_the_engines_to_refuse(body: bytes) -> None:
    ticket = Gateway().post(body)
    assert isinstance(ticket, Ticket)


@virtual
async def test_output_is_what_engines_lately_took_capped_by_the_bodys_maximum() -> None:
    gateway = Gateway(slots=10)
    gateway.ledger.publish(replace(gateway.ledger.state, expected_output_tokens=80.0))
    assert gateway.post({"prompt": "x" * 40, "max_tokens": 500}).cost == Cost(10, 80)  # type: ignore[union-attr]
    assert gateway.post({"prompt": "x" * 40, "max_tokens": 20}).cost == Cost(10, 20)  # type: ignore[union-attr]
    assert gateway.post({"input": "x" * 40}, "/v1/embeddings").cost == Cost(10, 0)  # type: ignore[union-attr]


@virtual
async def test_what_is_refused_from_headers_never_asks_for_the_body() -> None:
    gateway = Gateway(slots=1)
    gateway.post()
    refusal = gateway.admission.arrive(head(x_priority="P1"))
    assert isinstance(refusal, Candidate)
    gateway.post(x_priority="P0")
    refusal = gateway.admission.arrive(head(x_priority="P2"))
    assert isinstance(refusal, Rejection)
    assert refusal.outcome is Outcome.SHED


SHEDDING = "{}", "classification: [{when: {model: m}, priority: P2}]"
"""Decided from headers, and only with the body."""


def shedding(rate: float, policy: str = "{}") -> Gateway:
    gateway = Gateway(slots=1e6, policy=policy)
    gateway.ledger.publish(replace(gateway.ledger.state, rejection=(rate, rate, rate)))
    return gateway


def is_shed(answer: object) -> bool:
    return isinstance(answer, Rejection) and answer.outcome is Outcome.SHED


@virtual
async def test_the_rejection_rate_is_borne_once_per_request() -> None:
    for policy in SHEDDING:
        gateway = shedding(0.5, policy)
        for words in range(1000):
            gateway.post({"prompt": "x " * words})
        assert 440 < gateway.seen.outcomes[Outcome.SHED] < 560


@virtual
async def test_no_header_that_a_client_makes_up_gains_another_verdict() -> None:
    """Whoever is refused comes back with another request id, as a retry, by another agent, over more hops; in vain."""
    for policy in SHEDDING:
        gateway = shedding(0.5, policy)
        for words in range(50):
            body = {"prompt": "x " * words}
            verdicts = {is_shed(gateway.post(body, x_forwarded_for="10.0.0.1"))}
            for attempt in range(ATTEMPTS - 1):
                again = gateway.post(
                    body,
                    path=f"{CHAT}?attempt={attempt}",
                    x_request_id=f"{attempt}",
                    x_stainless_retry_count=f"{attempt}",
                    x_envoy_attempt_count=f"{attempt}",
                    x_tenant_id=f"{attempt}",
                    x_session_id=f"{attempt}",
                    user_agent=f"agent/{attempt}",
                    x_forwarded_for=f"1.2.3.{attempt}, 10.0.0.1",
                )
                verdicts.add(is_shed(again))
            assert len(verdicts) == 1


@virtual
async def test_a_trusted_session_keeps_its_verdict_whatever_it_sends() -> None:
    for rule in ("", "classification: [{when: {model: m}, priority: P2}]"):
        gateway = shedding(0.5, f"trust: {{session: X-Session-Id}}\n{rule}")
        verdicts = [
            {is_shed(gateway.post({"prompt": "x " * words}, x_session_id=f"{session}")) for words in range(10)}
            for session in range(200)
        ]
        assert all(len(seen) == 1 for seen in verdicts)
        assert 70 < sum(True in seen for seen in verdicts) < 130


@virtual
async def test_requests_that_are_all_the_same_are_refused_at_the_rate() -> None:
    """As a load generator sends them; they are no retries of one another."""
    for rate in (0.1, 0.5):
        gateway = shedding(rate)
        for _ in range(100):
            gateway.post(x_forwarded_for="10.0.0.1")
        assert abs(gateway.seen.outcomes[Outcome.SHED] / 100 - rate) <= 0.12


@virtual
async def test_no_tenant_is_blacked_out_by_the_rejection_rate() -> None:
    gateway = shedding(0.6, "trust: {headers: [x-tenant-id]}")
    through = []
    for tenant in range(20):
        answers = [gateway.post({"prompt": "x " * words}, x_tenant_id=f"team-{tenant}") for words in range(250)]
        through.append(sum(not is_shed(answer) for answer in answers))
    assert sum(through) ** 2 / (20 * sum(x * x for x in through)) > 0.98


@virtual
async def test_a_retry_is_counted_and_has_the_priority_and_place_of_a_first_attempt() -> None:
    gateway = Gateway(slots=1)
    gateway.post()
    first, retry, last = (gateway.post(**retried) for retried in ({}, {"x_stainless_retry_count": "2"}, {}))
    assert gateway.seen.retries == {Priority.P1: 1}
    assert all(isinstance(answer, Waiting) for answer in (first, retry, last))
    assert [waiter.item.submission.retry for waiter in gateway.dispatcher.bands[Priority.P1].heads()] == [
        False,
        True,
        False,
    ]


@virtual
async def test_a_retry_is_counted_once_also_where_the_body_decides() -> None:
    gateway = Gateway(policy="classification: [{when: {model: m}, priority: P2}]")
    gateway.post({"model": "m"}, x_stainless_retry_count="1")
    gateway.post({"model": "m"}, x_stainless_retry_count="0")
    assert gateway.seen.retries == {Priority.P2: 1}


@virtual
async def test_a_prompt_no_engine_holds_is_refused_for_good() -> None:
    gateway = Gateway()
    gateway.ledger.publish(replace(gateway.ledger.state, engine_max_tokens=1000))
    refusal = gateway.post({"prompt": "x" * 20_000})
    assert isinstance(refusal, Rejection)
    assert refusal.outcome is Outcome.TOO_LARGE
    assert refusal.retry_after_s is None


@virtual
async def test_an_estimate_above_the_largest_engine_is_taken_as_the_whole_engine() -> None:
    gateway = Gateway()
    gateway.ledger.publish(replace(gateway.ledger.state, engine_max_tokens=1000))
    ticket = gateway.post({"prompt": "x" * 3600, "max_tokens": 500, "n": 2})
    assert isinstance(ticket, Ticket)
    assert ticket.cost.load == Load(1000, 2)


@virtual
async def test_the_refusal_speaks_the_api_that_was_called() -> None:
    gateway = Gateway(slots=0, policy="queues: [{priority: P1, name: one, maxQueueSize: 0, timeout: 1s}]")
    refusal = gateway.post(path="/v1/messages")
    assert isinstance(refusal, Rejection)
    assert refusal.api is Api.ANTHROPIC


@virtual
@pytest.mark.parametrize(("said", "waits"), [("2", 1.9), ("600", 8.0), ("nonsense", 8.0), ("-1", 8.0), ("nan", 8.0)])
async def test_the_wait_ends_before_the_clients_patience(said: str, waits: float) -> None:
    gateway = Gateway(slots=1)
    gateway.post()
    waiting = gateway.post(x_priority="P0", x_stainless_read_timeout=said)
    assert isinstance(waiting, Waiting)
    assert waiting.longest_wait_s == waits


@virtual
async def test_the_policy_names_further_deadlines_and_the_smallest_wins() -> None:
    headers = "[{name: X-Request-Timeout, unit: ms}, {name: grpc-timeout, unit: grpc}]"
    gateway = Gateway(slots=1, policy=f"trust: {{headers: [x-priority]}}\ndeadlines: {{headers: {headers}}}")
    gateway.post()
    waits = [
        gateway.post(x_priority="P0", x_request_timeout="2500"),
        gateway.post(x_priority="P0", x_request_timeout="2500", grpc_timeout="1S"),
        gateway.post(x_priority="P0", x_request_timeout="2500", x_stainless_timeout="2"),
        gateway.post(x_priority="P0", x_request_timeout="0", x_deadline="1"),
    ]
    assert [waiting.longest_wait_s for waiting in waits if isinstance(waiting, Waiting)] == [2.375, 0.95, 1.9, 8.0]


@virtual
async def test_more_sequences_than_the_pool_has_slots_take_them_all_instead_of_waiting_for_ever() -> None:
    gateway = Gateway(slots=4)
    ticket = gateway.post({"prompt": ["x" * 40] * 3, "n": 4, "max_tokens": 10})
    assert isinstance(ticket, Ticket)
    assert ticket.cost == Cost(30, 30, 4)
    assert isinstance(gateway.post(), Waiting)


@virtual
async def test_the_engine_hears_our_priority_not_the_clients() -> None:
    gateway = Gateway()
    ticket = gateway.post(x_priority="P2")
    assert isinstance(ticket, Ticket)
    changes = gateway.admission.header_changes(ticket)
    assert changes.set == (("x-vllm-priority", "2"), ("x-extproc-priority", "P2"))
    assert changes.remove == ("x-priority", "x-tenant-id")


@virtual
async def test_a_bypass_rule_on_the_body_lets_pass_and_holds_nothing() -> None:
    gateway = Gateway(policy="classification: [{when: {model: free}, bypass: true}]")
    assert isinstance(gateway.post({"model": "free"}), Pass)
    assert isinstance(gateway.post({"model": "other"}), Ticket)
    assert gateway.slots_in_use == 1


@virtual
async def test_draining_refuses_from_headers_and_after_the_body() -> None:
    gateway = Gateway()
    arrived = gateway.admission.arrive(head())
    assert isinstance(arrived, Candidate)
    ticket = gateway.post()
    assert isinstance(ticket, Ticket)
    gateway.admission.drain()
    for verdict in (gateway.admission.decide(arrived, b"{}"), gateway.admission.arrive(head())):
        assert isinstance(verdict, Rejection)
        assert verdict.outcome is Outcome.DRAINING
    ticket.end(End.COMPLETED)
    assert gateway.slots_in_use == 0


@virtual
async def test_every_priority_is_counted_under_its_own_name() -> None:
    gateway = Gateway(slots=10)
    for priority in Priority:
        gateway.post(x_priority=str(priority))
    assert gateway.seen.by_priority == {(Outcome.ADMITTED, priority): 1 for priority in Priority}


@virtual
@pytest.mark.parametrize(("late", "waits"), [("true", [8.0, 1.9]), ("false", [8.0, 15.0])])
async def test_in_a_pool_that_refuses_the_late_a_wait_ends_within_the_target_where_one_is_stated(
    late: str, waits: list[float]
) -> None:
    pool = f"{{controllers: [fused], fused: {{refuseLate: {late}}}, targets: {{P1: {{ttft: 2s}}}}}}"
    gateway = Gateway(slots=1, policy=f"trust: {{headers: [x-priority]}}\npools: [{pool}]")
    gateway.post()
    sent = [gateway.post(x_priority=priority) for priority in ("P0", "P1")]
    assert [waiting.longest_wait_s for waiting in sent if isinstance(waiting, Waiting)] == waits
