"""Checks between the sections of a policy. Each yields `(path, message)` with the path from the policy's root."""

from __future__ import annotations

from msgspec import UNSET

from extproc.config.checks import Found
from extproc.config.controllers import ControllerName
from extproc.config.requests import Auth
from extproc.config.schema import DEFAULT_QUEUES, Policy
from extproc.config.units import write_seconds


def queue_set(policy: Policy) -> Found:
    """Between queues: each priority once, each name once (whatever its case)."""
    for i, queue in enumerate(policy.queues):
        before = policy.queues[:i]
        if any(other.priority == queue.priority for other in before):
            yield f"queues[{i}].priority", f"{queue.priority} has a queue already; expected each priority once"
        if any(other.name.lower() == queue.name.lower() for other in before):
            yield f"queues[{i}].name", f"'{queue.name}' is taken; expected each name once"
    given = {queue.priority for queue in policy.queues}
    for default in DEFAULT_QUEUES:
        for i, queue in enumerate(policy.queues):
            if default.priority not in given and queue.name.lower() == default.name:
                message = f"'{queue.name}' is taken by the default queue of {default.priority}; expected another name"
                yield f"queues[{i}].name", message


def pool_set(policy: Policy) -> Found:
    """Between pools: names, models and engines each once."""
    names: set[str] = set()
    models: dict[str, str] = {}
    engines: dict[str, str] = {}
    if not policy.pools:
        yield "pools", "expected at least one pool"
    for i, pool in enumerate(policy.pools):
        if pool.name in names:
            yield f"pools[{i}].name", f"'{pool.name}' is taken; expected each name once"
        names.add(pool.name)
        for j, model in enumerate(pool.models):
            if model in models:
                yield (
                    f"pools[{i}].models[{j}]",
                    f"'{model}' is served by {models[model]} already; expected each model once",
                )
            models.setdefault(model, f"pool '{pool.name}'")
        for j, engine in enumerate(pool.engines.static):
            if engine in engines:
                where = f"pools[{i}].engines.static[{j}]"
                yield where, f"'{engine}' belongs to {engines[engine]} already; expected each engine in one pool, once"
            engines.setdefault(engine, f"pool '{pool.name}'")


def rule_set(policy: Policy) -> Found:
    """Between rules and pools: a rule names a pool that is there, and every pool can be reached."""
    names = [pool.name for pool in policy.pools]
    aimed = {rule.pool for rule in policy.classification}
    for i, rule in enumerate(policy.classification):
        if rule.pool is not UNSET and rule.pool not in names:
            yield f"classification[{i}].pool", f"expected the name of a pool ({', '.join(names)}); got '{rule.pool}'"
    open_pools = [i for i, pool in enumerate(policy.pools) if not pool.models and pool.name not in aimed]
    for i in open_pools[1:]:
        other = policy.pools[open_pools[0]].name
        message = (
            f"expected models, or a classification rule that names this pool: '{other}' serves every model already"
        )
        yield f"pools[{i}].models", message


def tenant_set(policy: Policy) -> Found:
    """Between tenants: each name and each key once, and somebody to let in where a key is required."""
    names: set[str] = set()
    keys: dict[str, str] = {}
    for i, tenant in enumerate(policy.tenants):
        if tenant.name in names:
            yield f"tenants[{i}].name", f"'{tenant.name}' is taken; expected each name once"
        names.add(tenant.name)
        for j, key in enumerate(tenant.keys):
            if key in keys:
                yield f"tenants[{i}].keys[{j}]", f"is a key of tenant '{keys[key]}' already; expected each key once"
            keys.setdefault(key, tenant.name)
    if policy.auth is Auth.REQUIRED and not keys and not policy.trust.names_tenants:
        yield "auth", "nobody could be let in; expected tenants with keys, or trust in x-tenant-id or tenantMetadata"


def reserved(policy: Policy) -> Found:
    """Slots held back must leave some for everybody, where a pool's limit in requests is written down."""
    total = sum(queue.reserved_slots for queue in policy.queues)
    for i, pool in enumerate(policy.pools):
        limit = pool.fixed.limit
        if ControllerName.FIXED not in pool.controllers or limit == "auto" or limit.requests is None:
            continue
        if total and total >= limit.requests:
            yield (
                f"pools[{i}].fixed.limit.requests",
                f"expected more than the reservedSlots of all queues ({total}); got {limit.requests}",
            )


def staleness(policy: Policy) -> Found:
    """A sample must not be called stale before the next one can have come."""
    given = policy.failure.stale_after_s
    slowest = max(policy.pools, key=lambda pool: pool.engines.scrape_interval_s, default=None)
    if slowest is not None and given < 2 * slowest.engines.scrape_interval_s:
        interval, given_text = write_seconds(slowest.engines.scrape_interval_s), write_seconds(given)
        yield (
            "failure.staleAfter",
            f"expected at least twice the scrapeInterval of pool '{slowest.name}' ({interval}); got {given_text}",
        )


ACROSS = (
    (("queues",), queue_set),
    (("pools",), pool_set),
    (("pools", "classification"), rule_set),
    (("tenants", "auth", "trust"), tenant_set),
    (("queues", "pools"), reserved),
    (("pools", "failure"), staleness),
)
"""Checks between sections, each with the fields it reads: it runs only where all of them could be read."""
