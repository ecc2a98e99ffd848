"""From a snapshot to what people and scripts read: the `/state` document and the `/readyz` verdict. Pure.

Keys are stable: scripts rely on them. Seconds end in `_s`, tokens are KV tokens, unknown and unlimited are both null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

from extproc import __version__
from extproc.fleet import EngineSample
from extproc.model import PRIORITIES, Load, Priority
from extproc.snapshots import EngineSnapshot, PoolSnapshot, ServiceSnapshot, ShareSnapshot, TenantSnapshot

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Requests: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Pool -> priority -> outcome -> count since the start."""
Retries: TypeAlias = Mapping[str, Mapping[str, int]]
"""Pool -> priority -> count since the start."""


def state_document(
    snapshot: ServiceSnapshot, *, wall_s: float, requests: Requests, retries: Retries
) -> dict[str, Json]:
    """`wall_s`: seconds since the epoch, now."""
    policy, wire = snapshot.policy, snapshot.wire
    return {
        "version": __version__,
        "time": wall_s,
        "uptime_s": snapshot.at - snapshot.started_at,
        "draining": snapshot.draining,
        "loop_lag_s": _number(snapshot.loop_lag_s),
        "policy": {
            "file": policy.file,
            "hash": policy.hash,
            "loaded_at": policy.loaded_at,
            "last_error": policy.last_error,
        },
        "wire": {
            "address": wire.address,
            "serving": wire.serving,
            "streams": wire.streams,
        },
        "warnings": list(_warnings(snapshot)),
        "pools": [
            _pool(pool, snapshot.at, requests=requests.get(pool.name, {}), retries=retries.get(pool.name, {}))
            for pool in snapshot.pools
        ],
        "tenants": [_tenant(tenant) for tenant in snapshot.tenants],
    }


def _tenant(tenant: TenantSnapshot) -> dict[str, Json]:
    return {
        "name": tenant.name,
        "tokens_per_minute": _number(round(tenant.quota.tokens_per_s * 60, 3)),
        "requests_per_minute": _number(round(tenant.quota.requests_per_s * 60, 3)),
        "burst_s": tenant.quota.burst_s,
        "tokens_left": _number(tenant.tokens_left),
        "requests_left": _number(tenant.requests_left),
    }


def _pool(
    pool: PoolSnapshot, now: float, *, requests: Mapping[str, Mapping[str, int]], retries: Mapping[str, int]
) -> dict[str, Json]:
    state = pool.state
    return {
        "name": pool.name,
        "leaving": pool.leaving,
        "saturation": _number(state.saturation),
        "pressure_at": _number(state.pressure_at),
        "reason": state.reason,
        "state_age_s": now - state.at,
        "limit": _load(state.limits[Priority.P0]),
        "held": _load(pool.held),
        "ghosts": _load(pool.ghosts),
        "drain_per_s": None if pool.drain_per_s is None else _load(pool.drain_per_s),
        "engine_max_tokens": state.engine_max_tokens,
        "expected_output_tokens": _number(state.expected_output_tokens),
        "expected_ttft_s": _number(state.expected_ttft_s),
        "prompt_tokens_per_s": None if state.pace is None else _number(state.pace.let_in_per_s),
        "share": _share(pool.share),
        "priorities": {
            str(priority): _class(
                pool, priority, requests=requests.get(str(priority), {}), retries=retries.get(str(priority), 0)
            )
            for priority in PRIORITIES
        },
        "engines_reporting": pool.engines_reporting,
        "engines": [_engine(engine) for engine in pool.engines],
    }


def _share(share: ShareSnapshot | None) -> dict[str, Json] | None:
    if share is None:
        return None
    return {
        "replicas": share.replicas,
        "leading": share.leading,
        "cut_off": share.cut_off,
        "differing": share.differing,
        "trouble": share.trouble,
        "stands_by": share.stands_by,
    }


def _class(pool: PoolSnapshot, priority: Priority, *, requests: Mapping[str, int], retries: int) -> dict[str, Json]:
    """`amplification`: attempts for each first attempt, as far as clients say which is which; null while there were none."""
    queue, state = pool.queues[priority], pool.state
    attempts = sum(requests.values()) + queue.waiting
    return {
        "queue": queue.name,
        "waiting": queue.waiting,
        "queue_size": queue.max_size,
        "waiting_load": _load(queue.waiting_load),
        "oldest_wait_s": _number(queue.oldest_wait_s),
        "retry_after_s": _number(queue.retry_after_s),
        "in_use": _load(pool.in_use[priority]),
        "limit": _load(state.limits[priority]),
        "reserved": _load(state.reserved[priority]),
        "rejection": _number(state.rejection[priority]),
        "requests": dict(requests),
        "retries": retries,
        "amplification": attempts / max(1, attempts - retries) if attempts else None,
    }


_SAMPLE_FIELDS = tuple(field.name for field in fields(EngineSample) if field.name not in {"engine", "at"})


def _engine(engine: EngineSnapshot) -> dict[str, Json]:
    """The sample's values lie flat beside the scraper's, all null while the engine has never answered."""
    values: dict[str, Json] = {name: _number(getattr(engine.sample, name, None)) for name in _SAMPLE_FIELDS}
    return {
        "engine": engine.engine,
        "reporting": engine.reporting,
        "age_s": _number(engine.age_s),
        "result": engine.result or None,
        "last_error": engine.last_error,
        "filtered": engine.filtered,
        **values,
    }


def _load(load: Load) -> dict[str, Json]:
    return {"tokens": _number(load.tokens), "slots": _number(load.slots)}


def _number(value: float | None) -> float | None:
    """JSON has neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether Envoy should send requests here, and what `/readyz` says of it."""

    ready: bool
    document: dict[str, Json]


def readiness(snapshot: ServiceSnapshot) -> Readiness:
    """Unready only where another replica would do better: engines that do not report are a detail, since requests
    are still decided while blind, and a refused policy file leaves the last good one in force.
    """
    wire_says = "draining" if snapshot.draining else "serving" if snapshot.wire.serving else "not listening yet"
    ready = snapshot.wire.serving and not snapshot.draining
    pools: dict[str, Json] = {pool.name: _engines_component(pool) for pool in snapshot.pools if not pool.leaving}
    components: dict[str, Json] = {
        "policy": _policy_component(snapshot),
        "wire": {"ok": ready, "detail": wire_says},
        "engines": pools,
    }
    return Readiness(ready, {"ready": ready, "components": components, "warnings": list(_warnings(snapshot))})


def _policy_component(snapshot: ServiceSnapshot) -> dict[str, Json]:
    if snapshot.policy.last_error is not None:
        return {"ok": False, "detail": snapshot.policy.last_error}
    others = "; ".join(_differing(snapshot))
    return {"ok": not others, "detail": f"in force, but {others}" if others else "in force"}


def _differing(snapshot: ServiceSnapshot) -> list[str]:
    """Replicas with another policy give the same request another priority, or obey another queue's size."""
    return [
        f"pool {pool.name}: {pool.share.differing} of {pool.share.replicas} replicas go by another policy"
        for pool in snapshot.pools
        if pool.share is not None and pool.share.differing and not pool.leaving
    ]


def _engines_component(pool: PoolSnapshot) -> dict[str, Json]:
    if pool.share is not None and pool.share.stands_by:
        return {"ok": True, "detail": "another process watches them"}
    if pool.follows:
        return {"ok": True, "detail": f"{pool.engines_reporting} reporting to the leader"}
    reporting, known = pool.engines_reporting, len(pool.engines)
    detail = f"{reporting} of {known} reporting" if known else "none configured"
    return {"ok": reporting == known, "detail": detail}


def _warnings(snapshot: ServiceSnapshot) -> list[str]:
    warnings = list(snapshot.wire.warnings)
    if snapshot.policy.last_error is not None:
        warnings.append(f"{snapshot.policy.file} was refused, the last good policy is in force")
    warnings += [
        f"pool {pool.name}: no engine reports, admission is by the failure rules"
        for pool in snapshot.pools
        if pool.engines
        and not pool.leaving
        and not pool.follows
        and not any(engine.reporting for engine in pool.engines)
    ]
    warnings += [
        f"pool {pool.name}: the shared state cannot be asked ({pool.share.trouble}), this replica goes on alone within its share"
        for pool in snapshot.pools
        if pool.share is not None and pool.share.cut_off
    ]
    return warnings + _differing(snapshot)


def unreadable(error: str | None) -> dict[str, Json]:
    """What `/state` and `/readyz` say when the state cannot be read."""
    return {"ready": False, "error": f"the service's state cannot be read: {error}"}
