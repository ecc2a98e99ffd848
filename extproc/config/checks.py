"""What the schema's types cannot say: ranges of single values, and values that depend on each other.

Every check yields `(path, message)`: the path relative to the struct it was given, the message with what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import UNSET, Struct

from extproc.config.controllers import (
    ControllerName,
    FixedPolicy,
    FusedPolicy,
    LatencySignal,
    LimitPolicy,
    PidPolicy,
    VegasPolicy,
    WatermarkPolicy,
)
from extproc.config.pool import EnginesPolicy, OverridePolicy, PoolPolicy, TargetPolicy
from extproc.config.requests import (
    ClassificationRule,
    DeadlineHeader,
    DeadlinesPolicy,
    DeadlineUnit,
    MetadataPolicy,
    QuotaPolicy,
    TenantPolicy,
    TrustPolicy,
    When,
)
from extproc.config.schema import BodyPolicy, CostPolicy, EnvoyPolicy, FailurePolicy, QueuePolicy, RetryAfterPolicy
from extproc.config.units import HEADER_NAME, NAME, PRIORITY_ALIASES, is_host_port, write_seconds
from extproc.model import PRIORITIES

Found = Iterator[tuple[str, str]]

TRUSTABLE_HEADERS = ("x-priority", "x-tenant-id")
NEW_EACH_TIME = ("x-request-id", "traceparent", "x-stainless-retry-count", "x-envoy-attempt-count", "content-length")
"""Headers that differ between a request and its retry."""
_KEY = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of one number: `least` and `most` inclusive, `above` exclusive. `expected` says them in words."""

    expected: str
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and value > self.above


_SHARE = Range("a number from 0 to 1", least=0, most=1)
_SHARE_ABOVE_0 = Range("a number above 0, to 1", above=0, most=1)
_COUNT = Range("a whole number, at least 0", least=0)
_COUNT_FROM_1 = Range("a whole number, at least 1", least=1)
_LONGER_THAN_0 = Range("a duration longer than 0", above=0)
_GAIN = Range("a number from 0 to 100", least=0, most=100)
_SHARE_OF_CAPACITY = Range("a number above 0, to 10", above=0, most=10)
_RETRY_AFTER = Range("a duration from 1s to 60s", least=1, most=60)

RANGES: dict[tuple[type[Struct], str], Range] = {
    (QueuePolicy, "max_queue_size"): _COUNT,
    (QueuePolicy, "timeout_s"): _LONGER_THAN_0,
    (QueuePolicy, "max_wait_under_pressure_s"): _LONGER_THAN_0,
    (QueuePolicy, "target_wait_s"): _LONGER_THAN_0,
    (QueuePolicy, "reserved_slots"): _COUNT,
    (TargetPolicy, "ttft_s"): _LONGER_THAN_0,
    (TargetPolicy, "tpot_s"): _LONGER_THAN_0,
    (EnginesPolicy, "scrape_interval_s"): Range("a duration from 50ms to 5s", least=0.05, most=5),
    (LimitPolicy, "requests"): _COUNT_FROM_1,
    (LimitPolicy, "tokens"): _COUNT_FROM_1,
    (FixedPolicy, "theta"): _SHARE_ABOVE_0,
    (FixedPolicy, "sequences_per_engine"): _COUNT_FROM_1,
    (WatermarkPolicy, "high"): _SHARE_ABOVE_0,
    (WatermarkPolicy, "panic"): _SHARE_ABOVE_0,
    (WatermarkPolicy, "max_waiting_per_engine"): _COUNT,
    (VegasPolicy, "min_limit"): _COUNT_FROM_1,
    (VegasPolicy, "max_limit"): _COUNT_FROM_1,
    (VegasPolicy, "alpha"): Range("a number above 0, to 100", above=0, most=100),
    (VegasPolicy, "beta"): _GAIN,
    (VegasPolicy, "smoothing"): Range("a number from 0 to 0.99", least=0, most=0.99),
    (VegasPolicy, "decrease"): Range("a number from 0.1 to 0.99", least=0.1, most=0.99),
    (PidPolicy, "setpoint"): _SHARE_ABOVE_0,
    (PidPolicy, "kp"): _GAIN,
    (PidPolicy, "ki"): _GAIN,
    (PidPolicy, "kd"): _GAIN,
    (PidPolicy, "min_share"): _SHARE_OF_CAPACITY,
    (PidPolicy, "max_share"): _SHARE_OF_CAPACITY,
    (FusedPolicy, "theta"): _SHARE_ABOVE_0,
    (FusedPolicy, "headroom"): Range("a number from 0 to 0.5", least=0, most=0.5),
    (FusedPolicy, "sequences_per_engine"): _COUNT_FROM_1,
    (FusedPolicy, "tpot_share"): _SHARE_ABOVE_0,
    (FusedPolicy, "backlog_s"): _LONGER_THAN_0,
    (OverridePolicy, "rejection"): _SHARE,
    (QuotaPolicy, "tokens_per_minute"): _COUNT_FROM_1,
    (QuotaPolicy, "requests_per_minute"): _COUNT_FROM_1,
    (QuotaPolicy, "burst_s"): Range("a duration from 1s to 1h", least=1, most=3600),
    (TenantPolicy, "weight"): Range("a number above 0, to 1000", above=0, most=1000),
    (RetryAfterPolicy, "base_s"): _RETRY_AFTER,
    (RetryAfterPolicy, "jitter"): _SHARE,
    (RetryAfterPolicy, "min_s"): _RETRY_AFTER,
    (RetryAfterPolicy, "max_s"): _RETRY_AFTER,
    (EnvoyPolicy, "message_timeout_s"): _LONGER_THAN_0,
    # Envoy's own bound on override_message_timeout; and nobody could wait at all below the margin of 1 s.
    (EnvoyPolicy, "max_message_timeout_s"): Range("a duration above 1s, to 1h", above=1, most=3600),
    (BodyPolicy, "max_bytes"): Range("a size from 0 to 1GiB", least=0, most=1 << 30),
    (CostPolicy, "tokens_per_byte"): Range("a number above 0, to 100", above=0, most=100),
    (CostPolicy, "compression_ratio"): Range("a number from 1 to 1000", least=1, most=1000),
    (CostPolicy, "default_prompt_tokens"): _COUNT,
    (CostPolicy, "default_output_tokens"): _COUNT,
    (FailurePolicy, "stale_after_s"): _LONGER_THAN_0,
    (FailurePolicy, "rejection"): _SHARE,
    (FailurePolicy, "capacity"): _SHARE,
}
"""Keyed by struct and field name, not by YAML key."""


def relations(struct: Struct) -> Found:
    """What is wrong inside one struct whose single values are right."""
    match struct:
        case QueuePolicy():
            yield from _queue(struct)
        case EnginesPolicy():
            yield from _engines(struct)
        case LimitPolicy() if struct.requests is None and struct.tokens is None:
            yield "", "expected at least one of requests, tokens"
        case QuotaPolicy() if struct.tokens_per_minute is None and struct.requests_per_minute is None:
            yield "", "expected at least one of tokensPerMinute, requestsPerMinute"
        case WatermarkPolicy() if struct.high >= struct.panic:
            yield "panic", f"expected a number above high ({struct.high:g}); got {struct.panic:g}"
        case VegasPolicy():
            yield from _vegas(struct)
        case PidPolicy() if struct.min_share > struct.max_share:
            yield "minShare", f"expected no more than maxShare ({struct.max_share:g}); got {struct.min_share:g}"
        case PoolPolicy():
            yield from _pool(struct)
        case When():
            yield from _when(struct)
        case ClassificationRule():
            yield from _rule(struct)
        case TrustPolicy():
            yield from _trust(struct)
        case DeadlineHeader():
            yield from _deadline_header(struct)
        case DeadlinesPolicy():
            yield from _deadlines(struct)
        case TenantPolicy():
            yield from _tenant(struct)
        case MetadataPolicy() if not struct.namespace or not all(struct.path) or not struct.path:
            yield "path", "expected a namespace and the keys below it, such as [payload, sub]"
        case RetryAfterPolicy() if struct.min_s > struct.max_s:
            yield "min", f"expected no more than max ({write_seconds(struct.max_s)}); got {write_seconds(struct.min_s)}"
        case EnvoyPolicy() if struct.message_timeout_s > struct.max_message_timeout_s:
            most, given = write_seconds(struct.max_message_timeout_s), write_seconds(struct.message_timeout_s)
            yield "messageTimeout", f"expected no more than maxMessageTimeout ({most}); got {given}"
        case _:
            pass


def _queue(queue: QueuePolicy) -> Found:
    taken = {priority.name.lower() for priority in PRIORITIES}
    taken |= {alias for alias, priority in PRIORITY_ALIASES.items() if priority != queue.priority}
    if not NAME.fullmatch(queue.name):
        yield "name", f"expected letters, digits, '.', '_', '-', at most 63; got '{queue.name}'"
    elif queue.name.lower() in taken:
        yield "name", f"expected a name that is not another word for a priority; got '{queue.name}'"


def _engines(engines: EnginesPolicy) -> Found:
    for i, address in enumerate(engines.static):
        if not is_host_port(address):
            yield f"static[{i}]", f"expected host:port, such as 10.0.0.1:8000 or [::1]:8000; got '{address}'"
    if not engines.metrics_path.startswith("/"):
        yield "metricsPath", f"expected a path that starts with /; got '{engines.metrics_path}'"


def _vegas(vegas: VegasPolicy) -> Found:
    if vegas.min_limit > vegas.max_limit:
        yield "minLimit", f"expected no more than maxLimit ({vegas.max_limit}); got {vegas.min_limit}"
    if not vegas.signals:
        yield "signals", f"expected at least one of {', '.join(LatencySignal)}"
    for signal in LatencySignal:
        if vegas.signals.count(signal) > 1:
            yield "signals", f"{signal} is named more than once"


def _pool(pool: PoolPolicy) -> Found:
    if not NAME.fullmatch(pool.name):
        yield "name", f"expected letters, digits, '.', '_', '-', at most 63; got '{pool.name}'"
    if pool.upstream_auth not in ("keep", "strip") and not _VARIABLE.fullmatch(pool.upstream_auth):
        yield "upstreamAuth", f"expected keep, strip or env:NAME; got '{pool.upstream_auth}'"
    if not pool.controllers:
        yield "controllers", f"expected at least one of {', '.join(ControllerName)}"
    for name in ControllerName:
        if pool.controllers.count(name) > 1:
            yield "controllers", f"{name} is named more than once"
    high, panic, setpoint = pool.watermark.high, pool.watermark.panic, pool.pid.setpoint
    if ControllerName.PID in pool.controllers and not high < setpoint < panic:
        between = f"between watermark.high ({high:g}) and watermark.panic ({panic:g})"
        yield "pid.setpoint", f"expected a number {between}; got {setpoint:g}"


def _tenant(tenant: TenantPolicy) -> Found:
    if not NAME.fullmatch(tenant.name):
        yield "name", f"expected letters, digits, '.', '_', '-', at most 63; got '{tenant.name}'"
    for i, key in enumerate(tenant.keys):
        if not _KEY.fullmatch(key):  # what was given is not repeated: it may be the key itself
            yield (
                f"keys[{i}]",
                "expected sha256: and 64 lower-case hexadecimal digits, the hash of the key, not the key",
            )


def _when(when: When) -> Found:
    given = {"path": when.path, "model": when.model, "serviceTier": when.service_tier, "tenant": when.tenant}
    if not when.header and all(value is None for value in given.values()):
        yield "", "expected at least one of path, header, model, serviceTier, tenant"
    for key, value in given.items():
        if value == "":
            yield key, "expected text that is not empty"
    if when.path and (not when.path.startswith("/") or "*" in when.path[:-1] or "?" in when.path):
        yield "path", f"expected a path without its query, such as /v1/embeddings or /v1/*; got '{when.path}'"
    names = [name.lower() for name in when.header or {}]
    for i, name in enumerate(when.header or {}):
        if name.startswith(":"):
            yield "header", f"'{name}' is not a header; expected the condition path, model or serviceTier instead"
        elif not HEADER_NAME.fullmatch(name):
            yield "header", f"expected a header name; got '{name}'"
        elif name.lower() in names[:i]:
            yield "header", f"'{name}' is there twice: header names are the same in upper and lower case"


def _rule(rule: ClassificationRule) -> Found:
    decides = rule.priority is not UNSET or rule.pool is not UNSET
    if not decides and not rule.bypass:
        yield "", "does nothing; expected at least one of priority, pool, bypass: true"
    if decides and rule.bypass:
        yield "bypass", "a request that passes untouched has neither priority nor pool; expected one or the other"


def _deadline_header(header: DeadlineHeader) -> Found:
    if not HEADER_NAME.fullmatch(header.name):
        yield "name", f"expected a header name; got '{header.name}'"
    elif (header.name.lower() == "grpc-timeout") is not (header.unit is DeadlineUnit.GRPC):
        yield "unit", f"expected grpc for grpc-timeout, and for no other header; got {header.unit} for '{header.name}'"


def _deadlines(deadlines: DeadlinesPolicy) -> Found:
    names = [header.name.lower() for header in deadlines.headers]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield f"headers[{i}].name", f"'{name}' is there twice; expected each header once"


def _trust(trust: TrustPolicy) -> Found:
    known = ", ".join(TRUSTABLE_HEADERS)
    for i, name in enumerate(trust.headers):
        if name.lower() not in TRUSTABLE_HEADERS:
            yield f"headers[{i}]", f"expected one of {known}; got '{name}'"
    if trust.session is None:
        return
    if not HEADER_NAME.fullmatch(trust.session):
        yield "session", f"expected a header name; got '{trust.session}'"
    elif trust.session.lower() in NEW_EACH_TIME:
        yield "session", f"expected a header that stays the same over a session's requests; got '{trust.session}'"
