"""Checks of what stands around the ext_proc filter: connection manager, routes, listener, and the engines' clusters."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.check.envoy_view import Envoy, addresses, routes, targets, threshold
from extproc.check.report import Finding, error, warning
from extproc.check.tree import Tree
from extproc.config.controllers import ControllerName, LimitPolicy
from extproc.config.pool import PoolPolicy
from extproc.config.schema import Policy
from extproc.config.units import write_bytes, write_seconds

ENVOY_IDLE_S = 300.0
"""Envoy's default for stream_idle_timeout."""
ENVOY_BUFFER_BYTES = 1 << 20
"""Envoy's default for per_connection_buffer_limit_bytes."""
NOT_FROM_CLIENTS = {"x-vllm-priority": "x-vllm-priority", "x-extproc-priority": "x-extproc-*"}
"""Headers that must be stripped, and how they are told: the second stands for a family."""


def check_around(envoy: Envoy, policy: Policy | None) -> Iterator[Finding]:
    """Everything but the filter itself. `policy`: None where no policy file was given."""
    for manager, ext_proc in envoy.protected_managers():
        wait = _longest_wait(ext_proc, policy)
        yield from _idle(manager, wait)
        yield from _routes(manager, ext_proc, wait)
        yield from _backstop(envoy, manager, ext_proc, policy)
        yield from _listener(envoy, ext_proc, policy)
        if policy is not None:
            yield from _engines(envoy, manager, policy)
    for ext_proc in envoy.ext_procs:
        yield from _stripped(envoy, ext_proc, policy)
    for limiter in envoy.rate_limits:
        timeout = limiter.get("timeout")
        if timeout.seconds(0.02) < 0.1:
            given = timeout.text("nothing (0.02s)")
            message = f"expected 0.1s to 0.25s; got {given}: later answers are ignored and the request passes"
            yield warning(timeout.path, message)


def _longest_wait(ext_proc: Tree, policy: Policy | None) -> float:
    longest = ext_proc.get("max_message_timeout").seconds(0)
    return min(longest, max(queue.timeout_s for queue in (policy or Policy()).queues))


def _idle(manager: Tree, wait_s: float) -> Iterator[Finding]:
    idle = manager.get("stream_idle_timeout")
    yield from _outlasts(idle, wait_s, ENVOY_IDLE_S)
    # It counts from the first byte to the last one sent upstream, the time in our queue included.
    yield from _outlasts(manager.get("request_timeout"), wait_s, 0)
    longest = manager.get("common_http_protocol_options", "max_stream_duration")
    if longest.seconds(0) > 0:
        yield warning(longest.path, f"expected nothing; got {longest.text()}: answers that take longer are cut")


def _outlasts(tree: Tree, wait_s: float, default_s: float) -> Iterator[Finding]:
    seconds = tree.seconds(default_s)
    if 0 < seconds <= wait_s:
        given = tree.text() if tree.given else f"nothing ({write_seconds(default_s)})"
        message = f"expected longer than the longest wait ({write_seconds(wait_s)}), or 0s; got {given}"
        yield error(tree.path, f"{message}: it counts while a request waits")


def _routes(manager: Tree, ext_proc: Tree, wait_s: float) -> Iterator[Finding]:
    body = ext_proc.get("processing_mode", "request_body_mode").text("NONE")
    reads_bodies = ext_proc.get("allow_mode_override").flag() or body != "NONE"
    for host, route in routes(manager):
        timeout = route.get("route", "timeout")
        if not timeout.given:
            yield error(timeout.path, "missing (15s); expected 0s: longer answers would be cut")
        elif timeout.seconds(15) > 0:
            yield warning(timeout.path, f"expected 0s; got {timeout.text()}: longer answers are cut")
        yield from _outlasts(route.get("route", "idle_timeout"), wait_s, 0)
        for policy in (route.get("route", "retry_policy"), host.get("retry_policy")):
            if policy.given:
                risk = ", and Envoy may send a body that it buffered for ext_proc twice" if reads_bodies else ""
                yield warning(policy.path, f"expected nothing: under overload each retry adds load{risk}")


def _backstop(envoy: Envoy, manager: Tree, ext_proc: Tree, policy: Policy | None) -> Iterator[Finding]:
    if not ext_proc.get("failure_mode_allow").flag():
        return
    names = dict.fromkeys(name for _, route in routes(manager) for name in targets(route))
    for name in names:
        cluster = envoy.cluster(name)
        if cluster is None:
            continue
        limit = threshold(cluster).get("max_requests")
        if not limit.given:
            message = (
                "missing; expected a limit: with failure_mode_allow it is all that protects the engines without extproc"
            )
            yield error(limit.path, message)
        elif limit.number(0) < (admits := _may_admit(policy or Policy(), cluster)):
            message = f"expected at least {admits}, the requests that the policy may admit; got {limit.number(0):.0f}"
            yield warning(limit.path, f"{message}: Envoy would refuse what extproc let through, whatever its priority")
    mappers = manager.get("local_reply_config", "mappers")
    if names and not any(_answers_overflow(mapper) for mapper in mappers.items()):
        yield warning(
            mappers.path,
            "expected a mapper with response_flag_filter flags [UO], status_code 429 and a retry-after header, for the "
            "circuit breaker's overflow",
        )


def _may_admit(policy: Policy, cluster: Tree) -> int:
    """Requests that the pools behind a cluster may have out at once, as far as it is written down; 0 where it is not."""
    pools = policy.pools if len(policy.pools) == 1 else _pools_behind(cluster, policy)
    each = [_pool_may_admit(pool) for pool in pools]
    return sum(each) if all(each) else 0


def _pools_behind(cluster: Tree, policy: Policy) -> list[PoolPolicy]:
    """Those with an engine among the cluster's."""
    there = set(addresses(cluster))
    return [pool for pool in policy.pools if not there.isdisjoint(pool.engines.static)]


def _pool_may_admit(pool: PoolPolicy) -> int:
    if pool.override.limit is not None:
        return pool.override.limit.requests or 0
    limits = [_most_requests(name, pool) for name in pool.controllers]
    return min((limit for limit in limits if limit is not None), default=0)


def _most_requests(controller: ControllerName, pool: PoolPolicy) -> int | None:
    """By a controller's settings; None: they do not say."""
    engines = len(pool.engines.static)
    match controller:
        case ControllerName.FIXED if isinstance(pool.fixed.limit, LimitPolicy):
            return pool.fixed.limit.requests
        case ControllerName.FIXED:
            return pool.fixed.sequences_per_engine * engines
        case ControllerName.FUSED:
            return pool.fused.sequences_per_engine * engines
        case _:
            return None


def _answers_overflow(mapper: Tree) -> bool:
    flags = [item.text() for tree in mapper.get("filter").walk() for item in tree.get("flags").items()]
    added = [item.get("header", "key").text().lower() for item in mapper.get("headers_to_add").items()]
    return "UO" in flags and mapper.get("status_code").number(0) == 429 and "retry-after" in added


def _listener(envoy: Envoy, ext_proc: Tree, policy: Policy | None) -> Iterator[Finding]:
    listener = envoy.listener_of(ext_proc)
    if listener is None:
        return
    needed = (policy or Policy()).body.max_bytes
    limit = listener.get("per_connection_buffer_limit_bytes")
    size = int(limit.number(ENVOY_BUFFER_BYTES))
    if size < needed:
        message = f"expected at least {needed} ({write_bytes(needed)}, the policy's body.maxBytes); got {size}"
        yield error(limit.path, f"{message}: larger bodies would be answered 413")


def _stripped(envoy: Envoy, ext_proc: Tree, policy: Policy | None) -> Iterator[Finding]:
    manager = next((manager for manager in envoy.managers if manager.holds(ext_proc)), None)
    before = [tree for tree in envoy.header_mutations if manager is None or _runs_before(tree, ext_proc, manager)]
    # The filter keeps its list one level deeper than the connection manager's early_header_mutation_extensions.
    lists = [tree.get("mutations") for tree in before] + [tree.get("mutations", "request_mutations") for tree in before]
    removed = [item for mutations in lists for item in mutations.items()]
    path = ext_proc.path.removesuffix(".typed_config")
    for name, shown in NOT_FROM_CLIENTS.items():
        if not any(_removes(item, name) for item in removed):
            yield warning(path, f"expected a header_mutation filter before this one that removes {shown}")
    for item in removed:
        for name in policy.trust.headers if policy is not None else ():
            if _removes(item, name):
                yield warning(item.path, f"removes {name}, which the policy's trust.headers believes")


def _runs_before(mutation: Tree, ext_proc: Tree, manager: Tree) -> bool:
    filters = manager.get("http_filters").items()
    ours = next((i for i, item in enumerate(filters) if item.holds(ext_proc)), len(filters))
    early = manager.get("early_header_mutation_extensions").holds(mutation)
    return early or any(item.holds(mutation) for item in filters[:ours])


def _removes(mutation: Tree, header: str) -> bool:
    if mutation.get("remove").text().lower() == header:
        return True
    matcher = mutation.get("remove_on_match", "key_matcher")
    prefix, exact = matcher.get("prefix").text().lower(), matcher.get("exact").text().lower()
    return bool(prefix and header.startswith(prefix)) or exact == header


def _engines(envoy: Envoy, manager: Tree, policy: Policy) -> Iterator[Finding]:
    scraped = {address for pool in policy.pools for address in pool.engines.static}
    names = dict.fromkeys(name for _, route in routes(manager) for name in targets(route))
    clusters = [cluster for name in names if (cluster := envoy.cluster(name)) is not None]
    served = {address for cluster in clusters for address in addresses(cluster)}
    if not scraped or not served:
        return
    for cluster in clusters:
        if len(behind := [pool.name for pool in _pools_behind(cluster, policy)]) > 1:
            message = (
                f"has engines of the pools {' and '.join(behind)}: requests of each would go to engines of the others"
            )
            yield warning(cluster.get("load_assignment").path, message)
    path = clusters[0].get("load_assignment").path
    for address in sorted(served - scraped):
        yield warning(
            path, f"'{address}' is not among the policy's engines: it gets requests, but its metrics are not read"
        )
    for address in sorted(scraped - served):
        yield warning(path, f"'{address}' is among the policy's engines, but gets no requests here")
