"""Checks of the ext_proc filter itself and of the cluster it asks. Reasons were measured with Envoy 1.36 and 1.40."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.check.envoy_view import Envoy, threshold
from extproc.check.report import Finding, error, warning
from extproc.check.tree import Tree
from extproc.config.schema import Policy
from extproc.config.units import write_seconds

ENVOY_MESSAGE_TIMEOUT_S = 0.2
"""Envoy's default for message_timeout."""
ENVOY_DEFAULT_BREAKER = 1024
"""Envoy's default for each circuit breaker threshold."""


def check_filter(envoy: Envoy, ext_proc: Tree, policy: Policy | None) -> Iterator[Finding]:
    """Everything about one ext_proc filter. `policy`: what must fit it, None where no policy file was given."""
    yield from _modes(ext_proc)
    yield from _timeouts(ext_proc)
    if policy is not None:
        yield from _same_timeouts(ext_proc, policy)
    yield from _extras(ext_proc)
    name = ext_proc.get("grpc_service", "envoy_grpc", "cluster_name")
    if not name.given:
        yield error(name.path, "missing; expected the name of extproc's cluster")
        return
    cluster = envoy.cluster(name.text())
    if cluster is not None:
        yield from _cluster(cluster, policy)
    elif envoy.complete:
        yield error(name.path, f"expected the name of a cluster in this file; got '{name.text()}'")


def _modes(ext_proc: Tree) -> Iterator[Finding]:
    modes = ext_proc.get("processing_mode")
    override = ext_proc.get("allow_mode_override").flag()
    trailers, body = modes.get("response_trailer_mode"), modes.get("request_body_mode")
    if trailers.text("SKIP") != "SEND" and not override:
        yield error(
            trailers.path,
            f"expected SEND (or allow_mode_override: true); got {trailers.text('SKIP')}: the stream would end before "
            "the response does, and running requests would not be counted",
        )
    if modes.get("request_header_mode").text("SEND") == "SKIP":
        yield error(modes.get("request_header_mode").path, "expected SEND; got SKIP: no request would be seen")
    if modes.get("response_header_mode").text("SEND") == "SKIP":
        message = "expected SEND; got SKIP: which engine answered, and with which status, stays unknown"
        yield warning(modes.get("response_header_mode").path, message)
    if body.text("NONE") not in ("NONE", "BUFFERED"):
        message = f"expected NONE or BUFFERED; got {body.text()}: with retries Envoy may send such a body twice"
        yield error(body.path, message)
    elif body.text("NONE") == "NONE" and not override:
        message = "expected true; without it no request body is read, and costs are guessed from its length"
        yield warning(ext_proc.get("allow_mode_override").path, message)
    answer = modes.get("response_body_mode")
    if answer.text("NONE").startswith("BUFFERED"):
        yield error(answer.path, f"expected NONE; got {answer.text()}: a streamed answer would arrive all at once")
    elif answer.text("NONE") != "NONE":
        yield warning(answer.path, f"expected NONE; got {answer.text()}: each token would pass through extproc")


def _timeouts(ext_proc: Tree) -> Iterator[Finding]:
    first, longest = ext_proc.get("message_timeout"), ext_proc.get("max_message_timeout")
    limit = longest.seconds(0)
    if limit <= first.seconds(ENVOY_MESSAGE_TIMEOUT_S):
        given = write_seconds(limit) if longest.given else "nothing (0s)"
        yield error(
            longest.path, f"expected longer than message_timeout, such as 300s; got {given}: nobody could queue"
        )
    if limit > 3600:
        yield error(longest.path, f"expected at most 3600s; got {write_seconds(limit)}: Envoy ignores longer waits")
    stream = ext_proc.get("grpc_service", "timeout")
    if stream.seconds(0) > 0:
        message = f"expected 0s; got {stream.text()}: the stream lives as long as the response"
        yield error(stream.path, message)


def _same_timeouts(ext_proc: Tree, policy: Policy) -> Iterator[Finding]:
    pairs = (
        ("message_timeout", ENVOY_MESSAGE_TIMEOUT_S, "messageTimeout", policy.envoy.message_timeout_s),
        ("max_message_timeout", 0.0, "maxMessageTimeout", policy.envoy.max_message_timeout_s),
    )
    for key, default, name, expected in pairs:
        tree = ext_proc.get(key)
        if abs(tree.seconds(default) - expected) > 1e-6:
            given = write_seconds(tree.seconds(default))
            message = f"expected {write_seconds(expected)}, as the policy's envoy.{name} says; got {given}"
            yield error(tree.path, message)
    longest = max(queue.timeout_s for queue in policy.queues)
    limit = ext_proc.get("max_message_timeout")
    if 0 < limit.seconds(0) < longest + 1:
        needed, given = write_seconds(longest + 1), write_seconds(limit.seconds(0))
        yield warning(
            limit.path, f"expected at least {needed}, the longest queue timeout and 1s; got {given}: waits end early"
        )


def _extras(ext_proc: Tree) -> Iterator[Finding]:
    observe = ext_proc.get("observability_mode")
    if observe.flag():
        yield error(observe.path, "expected false; got true: no decision would be enforced")
    rules = ext_proc.get("mutation_rules", "disallow_all")
    if rules.flag():
        yield error(rules.path, "expected false; got true: refusals would lose their Retry-After")
    immediate = ext_proc.get("disable_immediate_response")
    if immediate.flag():
        yield error(immediate.path, "expected false; got true: no request could be refused")
    open_ = ext_proc.get("failure_mode_allow")
    if not open_.flag():
        message = (
            "expected true, with a circuit breaker on the engines' cluster; else requests fail while extproc restarts"
        )
        yield warning(open_.path, message)
    attributes = ext_proc.get("response_attributes")
    if "upstream.address" not in [item.text() for item in attributes.items()]:
        yield warning(
            attributes.path, "expected [upstream.address]; without it extproc cannot tell which engine answered"
        )


def _cluster(cluster: Tree, policy: Policy | None) -> Iterator[Finding]:
    if not _speaks_http2(cluster):
        path = cluster.get("typed_extension_protocol_options").path
        yield error(path, "expected explicit_http_config with http2_protocol_options: gRPC needs HTTP/2")
    yield from _breakers(cluster, policy)
    checks = cluster.get("health_checks")
    if not any(check.get("grpc_health_check").given for check in checks.items()):
        yield warning(
            checks.path, "expected an active check of kind grpc_health_check, or a draining replica is not noticed"
        )
    panic = cluster.get("common_lb_config", "healthy_panic_threshold", "value")
    if checks.given and panic.number(50) != 0:
        message = (
            "expected 0, so that requests pass at once when no replica serves; else they meet one that drains or hangs"
        )
        yield warning(panic.path, message)
    closing = cluster.get("close_connections_on_host_health_failure")
    if closing.flag():
        message = "expected false; got true: a draining replica would lose the streams of its running requests"
        yield error(closing.path, message)


def _breakers(cluster: Tree, policy: Policy | None) -> Iterator[Finding]:
    limits = threshold(cluster)
    for key in ("max_requests", "max_pending_requests", "max_connections"):
        tree = limits.get(key)
        value = int(tree.number(ENVOY_DEFAULT_BREAKER))
        if value <= ENVOY_DEFAULT_BREAKER:
            given = str(value) if tree.given else f"nothing ({ENVOY_DEFAULT_BREAKER})"
            message = f"expected far above {ENVOY_DEFAULT_BREAKER}, such as 100000; got {given}"
            yield error(tree.path, f"{message}: beyond it Envoy does not ask")
        elif value < 10 * ENVOY_DEFAULT_BREAKER:
            yield warning(tree.path, f"expected at least {10 * ENVOY_DEFAULT_BREAKER}; got {value}")
    requests = limits.get("max_requests")
    room = sum(queue.max_queue_size for queue in policy.queues) if policy is not None else 0
    if ENVOY_DEFAULT_BREAKER < requests.number(ENVOY_DEFAULT_BREAKER) <= room:
        message = f"expected more than the {room} requests that the policy's queues hold; got {requests.number(0):.0f}"
        yield error(requests.path, message)


def _speaks_http2(cluster: Tree) -> bool:
    if cluster.get("http2_protocol_options").given:
        return True
    options = cluster.get("typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
    return options.get("explicit_http_config", "http2_protocol_options").given
