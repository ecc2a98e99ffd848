"""The policy as frozen structs: here the whole file, in `pool.py`, `controllers.py` and `requests.py` its larger sections.

YAML keys are the camelCase of the field, `_s` and `_bytes` left off. Every knob's docstring says unit, default and effect;
`docs/policy.md` is made from them (`describe.py`). Ranges, and values that depend on each other, are in `checks.py` and
`across.py`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from extproc.config.controllers import LimitPolicy
from extproc.config.pool import PoolPolicy
from extproc.config.requests import Auth, ClassificationRule, DeadlinesPolicy, TenantPolicy, TrustPolicy
from extproc.config.section import Bytes, Seconds, Section
from extproc.model import Priority


class DropPolicy(StrEnum):
    TAIL = "tail"
    EARLY_DROP = "early-drop-on-pressure"
    FAST_REJECT = "fast-reject"


class QueuePolicy(Section, frozen=True):
    """One priority's queue."""

    priority: Priority
    """0, 1, 2 or P0, P1, P2. Required, each priority once."""
    name: str
    """What people call it; also accepted in a trusted priority header. Required."""
    max_queue_size: int
    """Requests that may wait. Required, at least 0 (0: nobody waits)."""
    timeout_s: Seconds = field(name="timeout")
    """Longest wait. Required. Also bounded by `envoy.maxMessageTimeout` - 1 s and by the client's patience."""
    drop_policy: DropPolicy = DropPolicy.TAIL
    """`tail`: wait until admitted or timed out. `early-drop-on-pressure`: under pressure, drop what has waited too
    long and refuse who would. `fast-reject`: never wait under pressure or behind others. Default `tail`."""
    max_queue_bytes: Bytes = Bytes(64 << 20)
    """Bytes of request bodies that may wait. Default 64MiB."""
    max_wait_under_pressure_s: Seconds = field(name="maxWaitUnderPressure", default=Seconds(10.0))
    """`early-drop-on-pressure` only: nobody waits longer while the pool is above its high watermark. Default 10s."""
    target_wait_s: Seconds | None = field(name="targetWait", default=None)
    """`early-drop-on-pressure` only: the wait aimed at. Once the longest wait has been above it for as long again while the
    pool is under pressure, whoever has waited twice as long is dropped. Default timeout / 15 (1s for P1)."""
    reserved_slots: int = 0
    """Slots that lower priorities may not use. Default 0. Where tokens are limited, one counts as a mean request."""


class RetryAfterPolicy(Section, frozen=True):
    """How refused clients are told when to come back."""

    base_s: Seconds = field(name="base", default=Seconds(3.0))
    """What is said while nothing waits, or the drain rate is unknown. Default 3s."""
    jitter: float = 0.2
    """Spread, as a share to either side, at the least: of many refused together each is told another time. 0..1, default 0.2."""
    min_s: Seconds = field(name="min", default=Seconds(1.0))
    """The least that is said. Default 1s, at least 1s: clients ignore 0."""
    max_s: Seconds = field(name="max", default=Seconds(60.0))
    """The most that is said. Default 60s, at most 60s: some clients ignore more."""


class EnvoyPolicy(Section, frozen=True):
    """Envoy's settings, which are not visible from here. `extproc check` compares them with the Envoy file."""

    message_timeout_s: Seconds = field(name="messageTimeout", default=Seconds(2.0))
    """How long Envoy waits for a first answer. Default 2s, as in the shipped envoy.yaml."""
    max_message_timeout_s: Seconds = field(name="maxMessageTimeout", default=Seconds(300.0))
    """How long Envoy lets us extend that; no wait exceeds it - 1 s. Default 300s, as in the shipped envoy.yaml."""


class BodyPolicy(Section, frozen=True):
    """Which request bodies are shipped to us."""

    max_bytes: Bytes = field(name="maxBytes", default=Bytes(1 << 20))
    """JSON bodies up to this size, compressed and unfolded, are read; larger ones are costed by their length.
    Default 1MiB. Envoy's `per_connection_buffer_limit_bytes` must not be below."""


class CostPolicy(Section, frozen=True):
    """How a request's cost is estimated."""

    tokens_per_byte: float = 0.25
    """Prompt tokens per byte of prompt text (of body, where the body is not read). Default 0.25."""
    compression_ratio: float = 4.0
    """Bytes of body per byte of a compressed body that is not read. At least 1, default 4: JSON under gzip or zstd."""
    default_prompt_tokens: int = 1000
    """Where neither body nor length is known, as of chunked bodies. Default 1000."""
    default_output_tokens: int = 256
    """Where the engines have not yet shown their mean and the body names no maximum. Default 256."""


class FailurePolicy(Section, frozen=True):
    """What holds while the engines cannot be seen."""

    stale_after_s: Seconds = field(name="staleAfter", default=Seconds(1.0))
    """A sample older than this is not believed. Default 1s."""
    rejection: float = 0.5
    """Share of newcomers refused while no engine reports, lowest priority first. Default 0.5."""
    capacity: float = 0.5
    """Share of the last good limit in force for P1 and P2 while no engine reports: of its KV tokens, or of its requests where it
    counts no tokens. P0 keeps all of it. Default 0.5."""
    unknown_limit: LimitPolicy = LimitPolicy(requests=32)
    """A pool's limit while its capacity has never been seen. Default {requests: 32}."""


DEFAULT_QUEUES = (
    QueuePolicy(priority=Priority.P0, name="realtime-interactive", max_queue_size=200, timeout_s=Seconds(8)),
    QueuePolicy(
        priority=Priority.P1,
        name="agent-workflow",
        max_queue_size=500,
        timeout_s=Seconds(15),
        drop_policy=DropPolicy.EARLY_DROP,
    ),
    QueuePolicy(
        priority=Priority.P2,
        name="batch-extraction",
        max_queue_size=1000,
        timeout_s=Seconds(60),
        drop_policy=DropPolicy.FAST_REJECT,
    ),
)


class Policy(Section, frozen=True):
    """The whole file. An empty mapping is valid: everything has a default."""

    queues: tuple[QueuePolicy, ...] = DEFAULT_QUEUES
    """A priority left out keeps its default. After parsing always P0, P1, P2 in order."""
    classification: tuple[ClassificationRule, ...] = ()
    """Rules that give requests their priority and pool, in order. Default none: every request is P1."""
    pools: tuple[PoolPolicy, ...] = (PoolPolicy(),)
    """The engines to protect. Default one pool, `default`, for every model."""
    tenants: tuple[TenantPolicy, ...] = ()
    """Who pays. Default none: all are one tenant, unless a trusted header or metadata names others."""
    auth: Auth = Auth.OPTIONAL
    """`required`: who is no tenant we know is answered 401. Default optional: then it is the tenant `default`."""
    trust: TrustPolicy = TrustPolicy()
    """Which of a client's headers are believed."""
    deadlines: DeadlinesPolicy = DeadlinesPolicy()
    """How clients tell how long they wait."""
    retry_after: RetryAfterPolicy = RetryAfterPolicy()
    """How refused clients are told when to come back."""
    envoy: EnvoyPolicy = EnvoyPolicy()
    """Envoy's settings, repeated."""
    body: BodyPolicy = BodyPolicy()
    """Which request bodies are read."""
    cost: CostPolicy = CostPolicy()
    """How a request's cost is estimated."""
    failure: FailurePolicy = FailurePolicy()
    """What holds while the engines cannot be seen."""
