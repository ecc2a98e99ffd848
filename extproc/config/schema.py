"""The policy as frozen structs. YAML keys are the camelCase of the field, `_s` and `_bytes` left off.

Every knob's docstring says unit, default and effect; `docs/policy.md` is made from them (`describe.py`). Ranges, and
values that depend on each other, are in `checks.py` and `across.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from extproc.model import Priority


class Seconds(float):
    """A duration: `250ms`, `8s`, `1.5m`, `1h`, or a bare number of seconds. Not negative, finite."""


class Bytes(int):
    """A size: `512KiB`, `1MiB`, `1MB`, or a bare number of bytes. Not negative."""


class DropPolicy(StrEnum):
    TAIL = "tail"
    EARLY_DROP = "early-drop-on-pressure"
    FAST_REJECT = "fast-reject"


class EngineKind(StrEnum):
    VLLM = "vllm"


class ControllerName(StrEnum):
    FIXED = "fixed"
    WATERMARK = "watermark"
    VEGAS = "vegas"
    PID = "pid"
    FUSED = "fused"


class LatencySignal(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"


class DeadlineUnit(StrEnum):
    S = "s"
    MS = "ms"
    GRPC = "grpc"


class ShedOrder(StrEnum):
    LOWEST_FIRST = "lowest-first"
    UNIFORM = "uniform"


class Auth(StrEnum):
    OPTIONAL = "optional"
    REQUIRED = "required"


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class QueuePolicy(_Section, frozen=True):
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


class TargetPolicy(_Section, frozen=True):
    """What a priority's users were promised; misses are counted, latency controllers aim for it."""

    ttft_s: Seconds | None = field(name="ttft", default=None)
    """Time to first token. Default none."""
    tpot_s: Seconds | None = field(name="tpot", default=None)
    """Time per output token after the first. Default none; in a pool controlled by `fused` 60ms."""


class EnginesPolicy(_Section, frozen=True):
    """The engines of one pool and how their metrics are read."""

    kind: EngineKind = EngineKind.VLLM
    """Whose metric names they speak. Default vllm."""
    static: tuple[str, ...] = ()
    """`host:port` of each engine, as in Envoy's cluster. Default none: no metrics, limits by `fixed` or `failure`."""
    scrape_interval_s: Seconds = field(name="scrapeInterval", default=Seconds(0.1))
    """How often each engine is asked. Default 100ms; 50ms to 5s."""
    metrics_path: str = "/metrics"
    """Where each engine is asked. Default /metrics."""


class LimitPolicy(_Section, frozen=True):
    """A limit for the pool, in requests (sequence slots), in tokens, or both: the tighter binds."""

    requests: int | None = None
    """Requests that may run at once, at least 1. Default: not limited."""
    tokens: int | None = None
    """KV tokens that the estimated costs of running requests may add up to, at least 1. Default: not limited."""


class FixedPolicy(_Section, frozen=True):
    """Controller `fixed`: a limit that does not move by itself."""

    limit: LimitPolicy | Literal["auto"] = "auto"
    """Default auto: `theta` x the KV tokens that the reporting engines hold."""
    sequences_per_engine: int = 256
    """With `limit: auto`, requests at a time per reporting engine: its `--max-num-seqs`. Default 256, as vLLM's."""
    theta: float = 0.80
    """Share of the KV tokens that estimated costs may fill with `limit: auto`. 0..1, default 0.80."""


class WatermarkPolicy(_Section, frozen=True):
    """Controller `watermark`: rejection from KV usage."""

    high: float = 0.80
    """Mean KV usage above which newcomers are refused. 0..1, default 0.80. Also where drop policies begin to act."""
    panic: float = 0.92
    """Mean KV usage from which all are refused. Above high, to 1, default 0.92."""
    max_waiting_per_engine: int = 20
    """More requests waiting inside the engines than this x engines: all are refused. Default 20."""
    shed: ShedOrder = ShedOrder.LOWEST_FIRST
    """Who bears the rejection rate: `lowest-first` (the same share of all traffic, taken from P2 first) or `uniform`.
    Default lowest-first."""


class VegasPolicy(_Section, frozen=True):
    """Controller `vegas`: requests at once, from latency."""

    min_limit: int = 10
    """Requests at once where it starts, and below which it never goes. At least 1, default 10."""
    max_limit: int = 1000
    """Requests at once above which it never goes. At least minLimit, default 1000."""
    alpha: float = 0.1
    """Delay over the least latency seen, as a share of that, up to which the limit grows by 1. Above 0, default 0.1."""
    beta: float = 0.2
    """Above alpha x (1 + beta) the limit shrinks; between the two it stays. At least 0, default 0.2."""
    smoothing: float = 0.8
    """Weight of the past in the moving mean of latencies; the newest has the rest. 0 to 0.99, default 0.8."""
    decrease: float = 0.8
    """What the limit is multiplied by when it shrinks. 0.1 to 0.99, default 0.8."""
    signals: tuple[LatencySignal, ...] = (LatencySignal.TTFT, LatencySignal.TPOT)
    """Latencies to go by, each with a limit of its own, of which the tighter holds: `ttft` (to the first token, which
    grows with the prompt's length too), `tpot` (per token after it). Default [ttft, tpot]."""


class PidPolicy(_Section, frozen=True):
    """Controller `pid`: tokens in flight and admission probability, steered to a KV usage."""

    setpoint: float = 0.86
    """Mean KV usage to hold. Between watermark.high and watermark.panic, default 0.86."""
    kp: float = 1.0
    """Change of usage per second wanted for each unit of distance from the setpoint, 1/s. 0 to 100, default 1."""
    ki: float = 0.3
    """By how much that grows for each second at such a distance, 1/s^2. 0 to 100, default 0.3. 0: offsets stay."""
    kd: float = 0.0
    """Weight of the speed of the distance's change, without unit. 0 to 100, default 0: usage is too noisy for it."""
    min_share: float = 0.1
    """Least tokens in flight, as a share of the KV tokens that the engines hold. Above 0, to 10, default 0.1."""
    max_share: float = 2.0
    """Most tokens in flight, as such a share; a request is counted at its full length from the start, so 1 is less than
    it seems. At least minShare, to 10, default 2."""
    shed: ShedOrder = ShedOrder.LOWEST_FIRST
    """Who bears the rejection rate: `lowest-first` or `uniform`. Default lowest-first."""


class FusedPolicy(_Section, frozen=True):
    """Controller `fused`: KV tokens, sequences and a pace of prompts, corrected by what the engines show. Where it is in
    charge, a full pool is no pressure, since that is what it aims at: drop policies act while somebody waits all the time."""

    theta: float = 0.94
    """Share of its KV tokens that the fullest engine is filled to. Above 0, to 1, default 0.94."""
    headroom: float = 0.04
    """Share of the limit that P1 and P2 leave to P0. 0 to 0.5, default 0.04."""
    sequences_per_engine: int = 256
    """Requests at a time per reporting engine: its `--max-num-seqs`. Default 256, as vLLM's."""
    tpot_share: float = 0.9
    """Engine steps are held to this share of the least `targets.tpot`, in the mean: some answers meet longer ones. Above 0,
    to 1, default 0.9."""
    backlog_s: Seconds = field(name="backlog", default=Seconds(0.2))
    """Prompts that may wait in the engines, in seconds of their work: the longer, the fuller the engines and the later the
    first tokens. Default 200ms."""
    refuse_late: bool = True
    """A request waits no longer than half of the `targets.ttft` stated for its priority, and is refused where its first token
    would come after it. False: it is served late. Default true."""


class QuotaPolicy(_Section, frozen=True):
    """What a tenant may use, over all replicas and pools. What is above it is refused with the outcome `quota`.

    It refills steadily. A request reserves its estimated cost when it comes, which it gets back where it is not served."""

    tokens_per_minute: int | None = None
    """Prompt and output tokens, as estimated. At least 1. Default: not limited."""
    requests_per_minute: int | None = None
    """Requests. At least 1. Default: not limited."""
    burst_s: Seconds = field(name="burst", default=Seconds(60.0))
    """After a pause so much time's worth may be used at once: 60s is a whole minute's, 1s spreads the use evenly. A request
    that takes more may go when nothing is owed, and is paid off afterwards. 1s to 1h, default 60s."""


class TenantPolicy(_Section, frozen=True):
    """Who pays, and what it may."""

    name: str
    """Its name. Required, each once; `default` is whoever does not say who it is."""
    weight: float = 1.0
    """Its share of a contended priority, in proportion to the other tenants' weights. Above 0, default 1."""
    keys: tuple[str, ...] = ()
    """Its API keys, each as `sha256:` and 64 hexadecimal digits (`printf %s KEY | sha256sum`). Default none."""
    priority: Priority | UnsetType = UNSET
    """Of its requests, where neither a trusted header nor a rule says. Default P1."""
    quota: QuotaPolicy | None = None
    """What it may use per minute. Default: what there is."""


class MetadataPolicy(_Section, frozen=True):
    """Where Envoy's dynamic metadata names the tenant, such as a claim that `jwt_authn` verified."""

    namespace: str = "envoy.filters.http.jwt_authn"
    """The filter that wrote it. Must be among the ext_proc filter's forwarding namespaces."""
    path: tuple[str, ...] = ()
    """Keys down to the text, such as [payload, sub]. Required."""


class OverridePolicy(_Section, frozen=True):
    """For the night shift: replaces what the controllers say."""

    limit: LimitPolicy | None = None
    """The pool's limit, whatever the controllers say. Default: theirs."""
    rejection: float | None = None
    """Share of newcomers refused, 0..1, for every priority. Default: the controllers'."""


class PoolPolicy(_Section, frozen=True):
    """The engines behind one Envoy cluster."""

    name: str = "default"
    """Its name in metrics, rules and the shared state. Default default; each once."""
    models: tuple[str, ...] = ()
    """Models it serves. Default: every model."""
    engines: EnginesPolicy = EnginesPolicy()
    """The engines and how their metrics are read."""
    controllers: tuple[ControllerName, ...] = (ControllerName.FUSED,)
    """Limits take the minimum, rejections the maximum. Default [fused]; in a pool that has settings of `fixed` or `watermark`
    [fixed, watermark], so that a limit that is written down holds."""
    fixed: FixedPolicy = FixedPolicy()
    """Settings of the controller `fixed`."""
    watermark: WatermarkPolicy = WatermarkPolicy()
    """Settings of the controller `watermark`."""
    vegas: VegasPolicy = VegasPolicy()
    """Settings of the controller `vegas`."""
    pid: PidPolicy = PidPolicy()
    """Settings of the controller `pid`."""
    fused: FusedPolicy = FusedPolicy()
    """Settings of the controller `fused`."""
    targets: dict[Priority, TargetPolicy] = {}
    """Per priority, what its users were promised. Default none."""
    upstream_auth: str = "keep"
    """What engines see of a client's credentials: `keep`, `strip`, or `env:NAME` (the variable's value as the bearer token
    instead). Default keep."""
    override: OverridePolicy = OverridePolicy()
    """Replaces what the controllers say. Default nothing."""


def implied(section: type[Struct], given: Collection[str]) -> dict[str, object]:
    """What the fields that are given in a section say of others that are left out."""
    if section is PoolPolicy and "controllers" not in given and not {"fixed", "watermark"}.isdisjoint(given):
        return {"controllers": (ControllerName.FIXED, ControllerName.WATERMARK)}
    return {}


class When(_Section, frozen=True):
    """Conditions of a rule; all that are given must hold. At least one."""

    path: str | None = None
    """The path without its query; a trailing `*` matches any rest."""
    header: dict[str, str] | None = None
    """Header name to value; the value `*` means present. Names in lower case."""
    model: str | None = None
    """The body's `model`."""
    service_tier: str | None = None
    """The body's `service_tier`."""
    tenant: str | None = None
    """The tenant's name."""


class ClassificationRule(_Section, frozen=True):
    """The first rule that holds decides; what it leaves open the next ones decide."""

    when: When
    """What must hold for the rule to apply. Required."""
    priority: Priority | UnsetType = UNSET
    """The request's priority. Default: left to later rules, in the end P1."""
    pool: str | UnsetType = UNSET
    """The pool it goes to, by name. Default: left to later rules, in the end the pool of its model."""
    bypass: bool = False
    """True: pass untouched, uncounted in any limit. Default false."""


class TrustPolicy(_Section, frozen=True):
    """Which of a client's headers are believed."""

    headers: tuple[str, ...] = ()
    """Of `x-priority` (P0, P1, P2 or a queue's name) and `x-tenant-id` (a tenant's name). Default none."""
    tenant_metadata: MetadataPolicy | None = None
    """Where Envoy's own metadata names the tenant. Default nowhere."""
    session: str | None = None
    """The header in which your gateway names a user's session. Who is refused outright is then decided per session, about
    a minute at a time, so that nobody gets another verdict by sending another request. Default none: per request."""


class DeadlineHeader(_Section, frozen=True):
    """A request header that tells how long its sender waits for the first byte, from the request's arrival on."""

    name: str
    """The header, such as `x-request-timeout`, `grpc-timeout`, `x-envoy-expected-rq-timeout-ms`. Required."""
    unit: DeadlineUnit = DeadlineUnit.S
    """`s`, `ms`, or `grpc` for the format of `grpc-timeout` (`250m`, `5S`). Default s."""


class DeadlinesPolicy(_Section, frozen=True):
    """Who cannot be answered in time is refused at once, and again when its turn comes.

    The SDKs' own `x-stainless-read-timeout` and `x-stainless-timeout` are always read; the smallest of all wins. Zero,
    negative and unreadable values are ignored."""

    headers: tuple[DeadlineHeader, ...] = ()
    """Further headers that are read. Default none."""


class RetryAfterPolicy(_Section, frozen=True):
    """How refused clients are told when to come back."""

    base_s: Seconds = field(name="base", default=Seconds(3.0))
    """What is said while nothing waits, or the drain rate is unknown. Default 3s."""
    jitter: float = 0.2
    """Spread, as a share to either side, at the least: of many refused together each is told another time. 0..1, default 0.2."""
    min_s: Seconds = field(name="min", default=Seconds(1.0))
    """The least that is said. Default 1s, at least 1s: clients ignore 0."""
    max_s: Seconds = field(name="max", default=Seconds(60.0))
    """The most that is said. Default 60s, at most 60s: some clients ignore more."""


class EnvoyPolicy(_Section, frozen=True):
    """Envoy's settings, which are not visible from here. `extproc check` compares them with the Envoy file."""

    message_timeout_s: Seconds = field(name="messageTimeout", default=Seconds(2.0))
    """How long Envoy waits for a first answer. Default 2s, as in the shipped envoy.yaml."""
    max_message_timeout_s: Seconds = field(name="maxMessageTimeout", default=Seconds(300.0))
    """How long Envoy lets us extend that; no wait exceeds it - 1 s. Default 300s, as in the shipped envoy.yaml."""


class BodyPolicy(_Section, frozen=True):
    """Which request bodies are shipped to us."""

    max_bytes: Bytes = field(name="maxBytes", default=Bytes(1 << 20))
    """JSON bodies up to this size, compressed and unfolded, are read; larger ones are costed by their length.
    Default 1MiB. Envoy's `per_connection_buffer_limit_bytes` must not be below."""


class CostPolicy(_Section, frozen=True):
    """How a request's cost is estimated."""

    tokens_per_byte: float = 0.25
    """Prompt tokens per byte of prompt text (of body, where the body is not read). Default 0.25."""
    compression_ratio: float = 4.0
    """Bytes of body per byte of a compressed body that is not read. At least 1, default 4: JSON under gzip or zstd."""
    default_prompt_tokens: int = 1000
    """Where neither body nor length is known, as of chunked bodies. Default 1000."""
    default_output_tokens: int = 256
    """Where the engines have not yet shown their mean and the body names no maximum. Default 256."""


class FailurePolicy(_Section, frozen=True):
    """What holds while the engines cannot be seen."""

    stale_after_s: Seconds = field(name="staleAfter", default=Seconds(1.0))
    """A sample older than this is not believed. Default 1s."""
    rejection: float = 0.5
    """Share of newcomers refused while no engine reports, lowest priority first. Default 0.5."""
    capacity: float = 0.5
    """Share of the last good limit in force while no engine reports. Default 0.5."""
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


class Policy(_Section, frozen=True):
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
