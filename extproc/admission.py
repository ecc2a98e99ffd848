"""The order of decisions for one request: class, cost, size, then the pool's dispatcher.

What can be refused from headers is refused from headers: a body that would be refused anyway is never shipped to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from msgspec import Struct

from extproc.classify import PRIORITY_HEADER, Classifier, HeadClass
from extproc.config import Policy, PoolPolicy
from extproc.cost import estimate, read_body, surely_too_large, unread_length
from extproc.dispatcher import Dispatcher
from extproc.errors import ConfigError, Problem
from extproc.identity import Identity
from extproc.metering import Reservation
from extproc.model import DEFAULT_TENANT, Api, Outcome, Priority, Rejection
from extproc.outcomes import MESSAGES
from extproc.patience import Patience
from extproc.ports import Observer, Quota
from extproc.request import BodyFacts, HeaderChanges, RequestHead
from extproc.retries import is_retry
from extproc.retry_after import refill_retry_after_s
from extproc.submission import Submission
from extproc.targets import enforced_first_token_s
from extproc.tenants import TENANT_HEADER, Tenants
from extproc.tickets import Ticket, Waiting
from extproc.unfold import codings, unfold

_LEAST_TOKENS = 1.0
"""What a request takes at least: who cannot use even that is refused before its body is here."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Not ours to limit: goes on untouched, holds nothing."""

    outcome: Outcome = Outcome.PASSED


class Candidate(Struct, frozen=True):
    """A request classified as far as its headers allow. `wants_body`: its body tells the cost, and is worth shipping."""

    head: RequestHead
    head_class: HeadClass
    wants_body: bool


class _Seen(Struct, frozen=True, gc=False):
    """What is known of a body. `shipped_bytes`: that came to us; `length_bytes`: that its text may have, None unknown."""

    length_bytes: int | None
    shipped_bytes: int = 0
    facts: BodyFacts | None = None


class Admission:
    """One policy snapshot over its pools' dispatchers."""

    def __init__(
        self,
        policy: Policy,
        dispatchers: Mapping[str, Dispatcher],
        observer: Observer,
        *,
        quota: Quota,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment`: where `upstreamAuth: env:NAME` looks. Raises ConfigError where a variable is not set."""
        self._policy = policy
        self._classifier = Classifier(policy)
        self._patience = Patience(policy.deadlines)
        self._tenants = Tenants(policy)
        self._identity = Identity(policy.trust.session)
        self._targets_s = {pool.name: enforced_first_token_s(pool) for pool in policy.pools}
        self._dispatchers = dispatchers
        self._observer = observer
        self._quota = quota
        self._changes = {
            (pool.name, priority): _header_changes(priority, _credentials(pool, environment))
            for pool in policy.pools
            for priority in Priority
        }

    def arrive(self, head: RequestHead) -> Pass | Candidate | Rejection:
        """On request headers."""
        tenant = self._tenants.resolve(head)
        head_class = self._classifier.head(head, tenant or DEFAULT_TENANT)
        if head_class is None:
            self._observer.decided(Outcome.PASSED, None, "", waited_s=0.0)
            return Pass()
        if tenant is None:
            self._observer.decided(Outcome.UNAUTHENTICATED, None, "", waited_s=0.0)
            return Rejection(Outcome.UNAUTHENTICATED, MESSAGES[Outcome.UNAUTHENTICATED], head_class.api)
        if tenant.quota is not None and head_class.ours and (refill_s := self._quota.wait_s(tenant, _LEAST_TOKENS)) > 0:
            priority, pool = (head_class.priority, head_class.pool) if head_class.settled else (None, "")
            return self._over_quota(refill_s, head_class.api, priority, pool)
        if head_class.settled:
            submission = self._submission(head, head_class, head_class.priority, head_class.pool, self._unseen(head))
            who = partial(self._identity.sender, head, tenant, None)
            if refusal := self._dispatchers[head_class.pool].refuse_on_arrival(submission, who):
                return refusal
        return Candidate(head, head_class, wants_body=self._body_is_worth_it(head))

    def decide(self, candidate: Candidate, body: bytes | None) -> Ticket | Waiting | Rejection | Pass:
        """With the body where it was asked for and came; None: the cost is told by length or by default."""
        head, head_class = candidate.head, candidate.head_class
        seen = self._unseen(head) if body is None else self._look(head, body)
        facts = seen.facts
        settled = self._classifier.body(head, head_class, facts or BodyFacts())
        if settled is None:
            self._observer.decided(Outcome.PASSED, None, "", waited_s=0.0)
            return Pass()
        priority, pool = settled
        dispatcher = self._dispatchers[pool]
        submission = self._submission(head, head_class, priority, pool, seen)
        if not head_class.settled:
            who = partial(self._identity.sender, head, head_class.tenant, body)
            if refusal := dispatcher.refuse_on_arrival(submission, who):
                return refusal
        most = dispatcher.state.engine_max_tokens
        if facts is not None and most is not None and surely_too_large(facts, most):
            return dispatcher.refuse(Outcome.TOO_LARGE, submission)
        if submission.tenant.quota is None:
            return dispatcher.submit(submission)
        return self._submit_metered(dispatcher, submission)

    def _submit_metered(self, dispatcher: Dispatcher, submission: Submission) -> Ticket | Waiting | Rejection:
        """Of a tenant that has a quota: what the request is likely to take is reserved before it may wait or go."""
        tenant, tokens = submission.tenant, submission.bounded(dispatcher.state).cost.load.tokens
        if (refill_s := self._quota.wait_s(tenant, tokens)) > 0:
            return self._over_quota(refill_s, submission.api, submission.priority, dispatcher.pool)
        return Reservation(self._quota.reserve(tenant, tokens)).follow(dispatcher.submit(submission))

    def _over_quota(self, refill_s: float, api: Api, priority: Priority | None, pool: str) -> Rejection:
        self._observer.decided(Outcome.QUOTA, priority, pool, waited_s=0.0)
        after_s = refill_retry_after_s(refill_s, self._policy.retry_after)
        return Rejection(Outcome.QUOTA, MESSAGES[Outcome.QUOTA], api, after_s, priority, pool)

    def header_changes(self, ticket: Ticket) -> HeaderChanges:
        """What an admitted request's headers become on the way to the engine."""
        return self._changes[ticket.pool, ticket.priority]

    def drain(self) -> None:
        """Nobody is let in from now on; who waits is answered `draining`."""
        for dispatcher in self._dispatchers.values():
            dispatcher.drain()

    def _body_is_worth_it(self, head: RequestHead) -> bool:
        """JSON of a known fitting length, not compressed or so that we can undo it.

        Not chunked bodies, whose length nobody knows: Envoy answers 413 to one above its buffer, or, where it may send a
        part of it, now and then loses its end (1 in 30 of 6 MB, Envoy 1.40). They are costed by the policy's default.
        """
        if head.bodiless or codings(head.headers.get("content-encoding", "")) is None:
            return False
        media_type = head.headers.get("content-type", "").split(";", 1)[0].strip().lower()
        length = head.content_length
        return media_type == "application/json" and length is not None and 0 < length <= self._policy.body.max_bytes

    def _unseen(self, head: RequestHead) -> _Seen:
        compressed = bool(codings(head.headers.get("content-encoding", "")))
        return _Seen(unread_length(head.content_length, self._policy.cost, compressed=compressed))

    def _look(self, head: RequestHead, body: bytes) -> _Seen:
        applied = codings(head.headers.get("content-encoding", ""))
        if not applied:
            return _Seen(len(body), len(body), read_body(body, self._policy.cost))
        most_bytes = self._policy.body.max_bytes
        text = unfold(body, applied, most_bytes=most_bytes)
        length = unread_length(len(body), self._policy.cost, compressed=True, unfolded=len(text))
        facts = read_body(text, self._policy.cost) if len(text) <= most_bytes else None
        return _Seen(length, len(body), facts)

    def _submission(
        self, head: RequestHead, head_class: HeadClass, priority: Priority, pool: str, seen: _Seen
    ) -> Submission:
        cost = estimate(
            seen.facts,
            self._policy.cost,
            length_bytes=seen.length_bytes,
            generates=head_class.generates,
            expected_output_tokens=self._dispatchers[pool].state.expected_output_tokens,
        )
        return Submission(
            priority,
            cost,
            head_class.api,
            seen.shipped_bytes,
            self._patience.of(head.headers),
            head_class.tenant,
            head.request_id,
            is_retry(head.headers),
            target_s=self._targets_s[pool][priority],
        )


def _credentials(pool: PoolPolicy, environment: Mapping[str, str]) -> HeaderChanges:
    """What becomes of a client's credentials before an engine of the pool sees them."""
    match pool.upstream_auth:
        case "keep":
            return HeaderChanges()
        case "strip":
            return HeaderChanges(remove=("authorization", "x-api-key"))
        case source:
            name = source.removeprefix("env:")
            if not environment.get(name):
                problem = Problem(f"pools[{pool.name}].upstreamAuth", f"the environment variable {name} is not set")
                raise ConfigError("environment", [problem])
            return HeaderChanges(set=(("authorization", f"Bearer {environment[name]}"),), remove=("x-api-key",))


def _header_changes(priority: Priority, credentials: HeaderChanges) -> HeaderChanges:
    """vLLM: lower runs first, and this header beats the body's `priority`, so it is always ours."""
    ours = (("x-vllm-priority", str(int(priority))), ("x-extproc-priority", str(priority)))
    return HeaderChanges(set=ours + credentials.set, remove=(PRIORITY_HEADER, TENANT_HEADER, *credentials.remove))
