"""Every metric name of the project, with its type, labels and help: the one place to look.

Names follow Prometheus practice: base units, `_total` for counters, `_ratio` for 0..1. Label values are bounded: `pool`
and `engine` come from the policy, the rest from enums; what is neither is `other`, what a request lacks is `none`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Name:
    """One metric. `help` ends in its unit or says what 1 means."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_POOL = ("pool",)
_CLASS = ("pool", "priority")
_ENGINE = ("pool", "engine")


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Name:
    return Name(name, Kind.COUNTER, labels, help_)


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Name:
    return Name(name, Kind.GAUGE, labels, help_)


def _histogram(name: str, labels: tuple[str, ...], help_: str) -> Name:
    return Name(name, Kind.HISTOGRAM, labels, help_)


REQUESTS = _counter("extproc_requests_total", (*_CLASS, "outcome"), "Requests decided, by outcome.")
RETRIES = _counter("extproc_retries_total", _CLASS, "Requests that arrived and say that they are retries.")
ENDED = _counter("extproc_tickets_ended_total", (*_CLASS, "end"), "Admitted requests ended, by how.")
WIRE_EVENTS = _counter("extproc_wire_events_total", ("event",), "Unusual things on the streams from Envoy.")
SCRAPES = _counter("extproc_scrapes_total", ("engine", "result"), "Reads of an engine's metrics, by result.")
STATE_CALLS = _counter("extproc_state_calls_total", ("result",), "Calls to the shared state, by result.")
SNAPSHOT_ERRORS = _counter("extproc_snapshot_errors_total", (), "Times the state could not be read; a bug.")

QUEUE_WAIT = _histogram(
    "extproc_queue_wait_seconds", (*_CLASS, "verdict"), "Time from arrival to verdict: admitted, refused or gone."
)
HOLD = _histogram("extproc_hold_seconds", _CLASS, "Time an admitted request held its capacity.")
STATE_ASK = _histogram(
    "extproc_state_ask_seconds", (), "Time from asking for capacity to the verdict, shared or alone."
)
SCRAPE = _histogram("extproc_scrape_seconds", (), "Time one read of an engine's metrics took.")

BUILD = _gauge("extproc_build_info", ("version",), "Always 1; the version running.")
POLICY = _gauge("extproc_policy_info", ("hash",), "Always 1; the policy in force.")
POLICY_LOADED = _gauge("extproc_policy_loaded_timestamp_seconds", (), "When it came into force, since the epoch.")
POLICY_CURRENT = _gauge("extproc_policy_last_reload_successful", (), "1: the file is in force. 0: it was refused.")
DRAINING = _gauge("extproc_draining", (), "1 while shutting down.")
STREAMS = _gauge("extproc_streams", (), "Streams open from Envoy; one per request, queued or running.")
LOOP_LAG = _gauge("extproc_event_loop_lag_seconds", (), "Worst lateness of a timer in the last 10 s.")

LIMIT_TOKENS = _gauge("extproc_pool_limit_tokens", _CLASS, "Limit in force for a priority, KV tokens.")
LIMIT_SLOTS = _gauge("extproc_pool_limit_slots", _CLASS, "Limit in force for a priority, sequences.")
RESERVED_TOKENS = _gauge("extproc_pool_reserved_tokens", _CLASS, "Held back from lower priorities, KV tokens.")
RESERVED_SLOTS = _gauge("extproc_pool_reserved_slots", _CLASS, "Held back from lower priorities, sequences.")
IN_USE_TOKENS = _gauge("extproc_pool_in_use_tokens", _CLASS, "Held by requests of this replica, KV tokens.")
IN_USE_SLOTS = _gauge("extproc_pool_in_use_slots", _CLASS, "Held by requests of this replica, sequences.")
HELD_TOKENS = _gauge("extproc_pool_held_tokens", _POOL, "Held by all replicas with ghost load, KV tokens.")
HELD_SLOTS = _gauge("extproc_pool_held_slots", _POOL, "Held by all replicas with ghost load, sequences.")
GHOST_TOKENS = _gauge("extproc_pool_ghost_tokens", _POOL, "Held for requests whose stream is gone, KV tokens.")
GHOST_SLOTS = _gauge("extproc_pool_ghost_slots", _POOL, "Held for requests whose stream is gone, sequences.")
DRAIN_TOKENS = _gauge("extproc_pool_drain_tokens_per_second", _POOL, "KV tokens freed per second; absent: unknown.")
DRAIN_SLOTS = _gauge("extproc_pool_drain_slots_per_second", _POOL, "Sequences freed per second; absent: unknown.")
WAITING = _gauge("extproc_pool_waiting_requests", _CLASS, "Requests in the queue.")
WAITING_TOKENS = _gauge("extproc_pool_waiting_tokens", _CLASS, "What they would take, KV tokens.")
QUEUE_SIZE = _gauge("extproc_pool_queue_size_requests", _CLASS, "Requests the queue may hold.")
OLDEST_WAIT = _gauge("extproc_pool_oldest_wait_seconds", _CLASS, "Wait of the queue's head so far; 0 while empty.")
REJECTION = _gauge("extproc_pool_rejection_ratio", _CLASS, "Share of newcomers refused outright, 0..1.")
SATURATION = _gauge(
    "extproc_pool_saturation_ratio",
    _POOL,
    "0 idle, 1 at the limit; under `fused` how much of the last while work waited.",
)
STATE_AGE = _gauge("extproc_pool_state_age_seconds", _POOL, "Age of the controllers' last decision.")
ENGINES = _gauge("extproc_pool_engines", _POOL, "Engines known.")
ENGINES_REPORTING = _gauge("extproc_pool_engines_reporting", _POOL, "Engines whose sample is young enough.")
REPLICAS = _gauge("extproc_pool_replicas", _POOL, "Replicas that share the pool and are heard; absent: not shared.")
LEADING = _gauge("extproc_pool_leading", _POOL, "1: this process runs the pool's controllers; absent: not shared.")
CUT_OFF = _gauge("extproc_pool_cut_off", _POOL, "1: no shared state answers, it goes on alone; absent: not shared.")
POLICY_DISAGREEMENT = _gauge(
    "extproc_pool_policy_disagreement", _POOL, "Replicas that go by another policy than this one; absent: not shared."
)

ENGINE_REPORTING = _gauge("extproc_engine_reporting", _ENGINE, "1: its sample is young enough to be believed.")
ENGINE_KV_USAGE = _gauge("extproc_engine_kv_usage_ratio", _ENGINE, "KV cache in use, 0..1.")
ENGINE_KV_CAPACITY = _gauge("extproc_engine_kv_capacity_tokens", _ENGINE, "KV cache size, tokens.")
ENGINE_RUNNING = _gauge("extproc_engine_running_requests", _ENGINE, "Sequences in the engine's batch.")
ENGINE_WAITING = _gauge("extproc_engine_waiting_requests", _ENGINE, "Requests waiting for capacity in the engine.")
ENGINE_PREEMPTIONS = _gauge("extproc_engine_preemptions_per_second", _ENGINE, "Sequences thrown back, per second.")
ENGINE_AGE = _gauge("extproc_engine_sample_age_seconds", _ENGINE, "Age of its last sample.")

ALL: tuple[Name, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Name))
