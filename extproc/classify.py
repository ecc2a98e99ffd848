"""Whose request is this and how much does it matter: from headers and body facts to priority and pool. Pure."""

from __future__ import annotations

from urllib.parse import unquote

from msgspec import UNSET, Struct

from extproc.config import ClassificationRule, Policy, When
from extproc.model import Api, Priority, Tenant
from extproc.request import BodyFacts, RequestHead

_GENERATING = (
    *("/chat/completions", "/completions", "/responses", "/messages"),
    *("/generate", "/generate_stream", "/invocations"),  # the engines' own: SGLang, Triton, SageMaker's in vLLM
)
_SCORING = ("/embeddings", "/rerank", "/score", "/classify", "/pooling")
_ALIASES = {"realtime": Priority.P0, "agent": Priority.P1, "batch": Priority.P2}
PRIORITY_HEADER = "x-priority"
_NO_FACTS = BodyFacts()


class HeadClass(Struct, frozen=True):
    """What the headers decide. `settled`: the body can change neither priority nor pool, so these are final.
    `ours`: nor may a rule on the body yet let it pass untouched.

    `generates`: the answer is generated tokens, which take capacity too; False for embeddings and the like.
    `open_rules`: those whose conditions on the headers hold, in order; the body may have a word in each.
    """

    api: Api
    generates: bool
    priority: Priority
    pool: str
    settled: bool
    ours: bool
    tenant: Tenant
    open_rules: tuple[ClassificationRule, ...] = ()


class Classifier:
    """A policy's classification, prepared once per policy.

    The priority comes from the trusted header, else from the first rule that holds and names one, else from the tenant,
    else it is P1. The pool
    comes from the first rule that holds and names one, else from the model, else it is the first.
    """

    def __init__(self, policy: Policy) -> None:
        self._rules = policy.classification
        self._reads_body = any(rule.when.model or rule.when.service_tier for rule in policy.classification)
        self._body_may_bypass = any(
            rule.bypass and (rule.when.model or rule.when.service_tier) for rule in policy.classification
        )
        self._trusts_priority = PRIORITY_HEADER in policy.trust.headers
        self._names = {str(priority).lower(): priority for priority in Priority} | _ALIASES
        self._names |= {queue.name.lower(): queue.priority for queue in policy.queues}
        self._pool_of_model = {model: pool.name for pool in policy.pools for model in pool.models}
        catch_all = [pool.name for pool in policy.pools if not pool.models]
        self._default_pool = catch_all[0] if catch_all else policy.pools[0].name
        self._one_pool = len(policy.pools) == 1
        self._of_tenant = {tenant.name: tenant.priority for tenant in policy.tenants if tenant.priority is not UNSET}

    def head(self, head: RequestHead, tenant: Tenant) -> HeadClass | None:
        """None: not ours to limit (unknown paths, other methods than POST, rules that say bypass); passes untouched."""
        path = _path(head)
        generates = path.endswith(_GENERATING)
        if head.method != "POST":
            return None
        open_rules = tuple([rule for rule in self._rules if _may_hold(rule.when, path, head, tenant)])
        holding = [rule for rule in open_rules if _holds(rule.when, _NO_FACTS)]
        if any(rule.bypass for rule in holding):
            return None
        if not (generates or path.endswith(_SCORING) or any(rule.when.path for rule in holding)):
            return None
        priority, pool = self._decide(head, holding, tenant)
        return HeadClass(
            api=Api.ANTHROPIC if path.endswith("/messages") else Api.OPENAI,
            generates=generates or not path.endswith(_SCORING),
            priority=priority,
            pool=pool or self._default_pool,
            settled=not self._reads_body and (self._one_pool or pool is not None),
            ours=not self._body_may_bypass,
            tenant=tenant,
            open_rules=open_rules,
        )

    def body(self, head: RequestHead, head_class: HeadClass, facts: BodyFacts) -> tuple[Priority, str] | None:
        """The final priority and pool; None: a rule on the body says bypass."""
        if head_class.settled:
            return head_class.priority, head_class.pool
        holding = [rule for rule in head_class.open_rules if _holds(rule.when, facts)]
        if any(rule.bypass for rule in holding):
            return None
        priority, pool = self._decide(head, holding, head_class.tenant)
        return priority, pool or self._pool_of_model.get(facts.model or "", self._default_pool)

    def _decide(
        self, head: RequestHead, holding: list[ClassificationRule], tenant: Tenant
    ) -> tuple[Priority, str | None]:
        priority = self._trusted_priority(head)
        pool = None
        for rule in holding:
            if priority is None and rule.priority is not UNSET:
                priority = rule.priority
            if pool is None and rule.pool is not UNSET:
                pool = rule.pool
        return self._of_tenant.get(tenant.name, Priority.P1) if priority is None else priority, pool

    def _trusted_priority(self, head: RequestHead) -> Priority | None:
        """None where the header is not trusted, not there, or says nothing we know."""
        if not self._trusts_priority:
            return None
        return self._names.get(head.headers.get(PRIORITY_HEADER, "").strip().lower())


def _path(head: RequestHead) -> str:
    """As the engine's router sees it: `/v1/chat%2Fcompletions` is `/v1/chat/completions` to vLLM."""
    return unquote(head.path.split("?", 1)[0]).rstrip("/")


def _may_hold(when: When, path: str, head: RequestHead, tenant: Tenant) -> bool:
    """All conditions hold that are not on the body."""
    if when.path is not None and not _matches_path(when.path, path):
        return False
    if when.tenant is not None and when.tenant != tenant.name:
        return False
    return not when.header or all(_matches_header(name, value, head) for name, value in when.header.items())


def _holds(when: When, facts: BodyFacts) -> bool:
    """All conditions on the body hold. None does while the body is not known."""
    if when.model is not None and facts.model != when.model:
        return False
    return when.service_tier is None or facts.service_tier == when.service_tier


def _matches_path(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern.rstrip("/")


def _matches_header(name: str, value: str, head: RequestHead) -> bool:
    seen = head.headers.get(name.lower())
    return seen is not None and (value == "*" or seen == value)
