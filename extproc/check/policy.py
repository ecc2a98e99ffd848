"""Warnings about a policy that is valid, but perhaps not what was meant."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.check.report import Finding, warning
from extproc.config.controllers import ControllerName, LimitPolicy
from extproc.config.schema import Policy
from extproc.config.units import write_bytes, write_seconds
from extproc.model import DEFAULT_TENANT, Priority


def check_policy(policy: Policy) -> Iterator[Finding]:
    longest = policy.envoy.max_message_timeout_s - 1
    for queue in policy.queues:
        # Not the place in the file: a parsed policy has its queues in order, and those left out filled in.
        path = f"queues[{queue.priority}]"
        if queue.timeout_s > longest:
            given, bound = write_seconds(queue.timeout_s), write_seconds(longest)
            message = f"{given} is longer than envoy.maxMessageTimeout - 1s: waits end after {bound}"
            yield warning(f"{path}.timeout", message)
        if queue.max_queue_size and queue.max_queue_bytes < policy.body.max_bytes:
            given, largest = write_bytes(queue.max_queue_bytes), write_bytes(policy.body.max_bytes)
            message = f"{given} is less than one body of body.maxBytes ({largest}): such a request can never wait"
            yield warning(f"{path}.maxQueueBytes", message)
        if queue.priority is Priority.P2 and queue.reserved_slots:
            yield warning(f"{path}.reservedSlots", "nothing is below P2: these slots are kept from nobody")
    for i, pool in enumerate(policy.pools):
        if not pool.engines.static and pool.fixed.limit == "auto" and pool.override.limit is None:
            limit = _words(policy.failure.unknown_limit)
            message = f"none: no metrics are read, and the limit stays at failure.unknownLimit ({limit})"
            yield warning(f"pools[{i}].engines.static", message)
        if pool.targets and ControllerName.FUSED not in pool.controllers:
            yield warning(f"pools[{i}].targets", "kept by controller 'fused' alone, which this pool has not")
        if pool.override.limit is not None or pool.override.rejection is not None:
            yield warning(f"pools[{i}].override", "in force: the controllers are not heard")
    yield from _strangers(policy)


def _strangers(policy: Policy) -> Iterator[Finding]:
    """Rules for tenants that nobody can be. A trusted header or metadata may name any."""
    if policy.trust.names_tenants:
        return
    known = {DEFAULT_TENANT.name, *(tenant.name for tenant in policy.tenants)}
    for i, rule in enumerate(policy.classification):
        if rule.when.tenant is not None and rule.when.tenant not in known:
            message = (
                f"'{rule.when.tenant}' is no tenant of this policy, and no trusted header or metadata names others"
            )
            yield warning(f"classification[{i}].when.tenant", message)


def _words(limit: LimitPolicy) -> str:
    parts = ((limit.requests, "requests"), (limit.tokens, "tokens"))
    return ", ".join(f"{value} {unit}" for value, unit in parts if value is not None)
