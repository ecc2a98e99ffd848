"""The fake engine's `/metrics` text: vLLM 0.32's names, labels, help texts and order, in Prometheus text format 0.0.4.

Series of parts that this engine does not have (multi-modal and external caches, FLOPs, sleep) are left out.
Filtered answers follow `prometheus_client`'s rule, which vLLM uses: `name[]` selects samples by their full name, so a
counter is asked for as `..._total` and a histogram as `..._sum`, `..._count` or `..._bucket`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.engine_stats import EngineStats, Finish, Gauges, Histogram

_WITHOUT_ENGINE = "vllm:admission_rejections"
"""Counted by vLLM's front end, so without the `engine` label."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Read = Callable[[Gauges, EngineStats], float]

_CAPACITY_HELP = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = "
    "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals "
    "vllm:num_requests_waiting."
)

_GAUGES: tuple[tuple[str, str, tuple[tuple[Labels, Read], ...]], ...] = (
    (
        "num_requests_running",
        "Number of requests in model execution batches.",
        (((), lambda g, _: g.running),),
    ),
    (
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        (((), lambda g, _: g.waiting),),
    ),
    (
        "num_requests_waiting_by_reason",
        _CAPACITY_HELP,
        (
            ((("reason", "capacity"),), lambda g, _: g.waiting),
            ((("reason", "deferred"),), lambda _g, _s: 0),
        ),
    ),
    (
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        (((), lambda g, _: g.kv_usage),),
    ),
)

_COUNTERS: tuple[tuple[str, str, tuple[tuple[Labels, Read], ...]], ...] = (
    (
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        (((), lambda _g, _s: 0),),
    ),
    (
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        (((), lambda _g, _s: 0),),
    ),
    (
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        (((), lambda _, s: s.preemptions),),
    ),
    (
        "prompt_tokens",
        "Number of prefill tokens processed.",
        (((), lambda _, s: s.prompt_tokens),),
    ),
    (
        "generation_tokens",
        "Number of generation tokens processed.",
        (((), lambda _, s: s.generation_tokens),),
    ),
    (
        "request_success",
        "Count of successfully processed requests.",
        (
            ((("finished_reason", "stop"),), lambda _, s: s.finished[Finish.STOP]),
            ((("finished_reason", "length"),), lambda _, s: s.finished[Finish.LENGTH]),
            ((("finished_reason", "abort"),), lambda _, s: s.finished[Finish.ABORT]),
            ((("finished_reason", "error"),), lambda _g, _s: 0),
            ((("finished_reason", "repetition"),), lambda _g, _s: 0),
        ),
    ),
    (
        "admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        (
            ((("reason", "max_num_queued_reqs"),), lambda _, s: s.refused_queue_full),
            ((("reason", "max_num_queued_tokens"),), lambda _g, _s: 0),
        ),
    ),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStats], Histogram]], ...] = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda s: s.request_prompt_tokens),
    ("request_generation_tokens", "Number of generation tokens processed.", lambda s: s.request_generation_tokens),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda s: s.iteration_tokens),
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda s: s.request_max_tokens,
    ),
    ("request_params_n", "Histogram of the n request parameter.", lambda s: s.request_n),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda s: s.request_max_tokens),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda s: s.first_token_s),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda s: s.token_gap_s),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda s: s.time_per_token_s,
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda s: s.end_to_end_s),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", lambda s: s.queue_s),
    (
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda s: s.inference_s,
    ),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", lambda s: s.prefill_s),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", lambda s: s.decode_s),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda s: s.request_preemptions,
    ),
)


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric: its header, and its sample lines by sample name. A line is the text before the value, and the value."""

    header: str
    samples: tuple[tuple[str, Callable[[Gauges, EngineStats], Iterable[tuple[str, float]]]], ...]


class VllmMetrics:
    """Renders one engine's metrics. `created`: seconds since the epoch at which counting began."""

    def __init__(self, spec: EngineSpec, *, model_name: str, created: float) -> None:
        self._own = (("engine", "0"), ("model_name", model_name))
        self._created = created
        self._families = tuple(self._build(spec))

    def render(self, gauges: Gauges, stats: EngineStats, names: Collection[str] | None = None) -> str:
        """The whole text, or only the samples of these names (with the headers of their metrics)."""
        out: list[str] = []
        for family in self._families:
            wanted = [read for name, read in family.samples if names is None or name in names]
            if wanted:
                out.append(family.header)
                out += [f"{line} {float(value)!r}\n" for read in wanted for line, value in read(gauges, stats)]
        return "".join(out)

    def _build(self, spec: EngineSpec) -> Iterable[_Family]:
        for name, help_text, samples in _GAUGES:
            yield self._plain(f"vllm:{name}", "gauge", help_text=help_text, samples=samples)
        for name, help_text, samples in _COUNTERS:
            yield self._plain(f"vllm:{name}_total", "counter", help_text=help_text, samples=samples)
            created = tuple((labels, lambda _g, _s: self._created) for labels, _ in samples)
            yield self._plain(f"vllm:{name}_created", "gauge", help_text=help_text, samples=created)
        for name, help_text, pick in _HISTOGRAMS:
            yield self._histogram(f"vllm:{name}", help_text, pick)
            begun: tuple[tuple[Labels, Read], ...] = (((), lambda _g, _s: self._created),)
            yield self._plain(f"vllm:{name}_created", "gauge", help_text=help_text, samples=begun)
        info: tuple[tuple[Labels, Read], ...] = ((_cache_config(spec), lambda _g, _s: 1),)
        help_text = "Information of the LLMEngine CacheConfig"
        yield self._plain("vllm:cache_config_info", "gauge", help_text=help_text, samples=info)

    def _plain(self, name: str, kind: str, *, help_text: str, samples: Sequence[tuple[Labels, Read]]) -> _Family:
        lines = [(self._line(name, labels), read) for labels, read in samples]

        def read_all(gauges: Gauges, stats: EngineStats) -> Iterable[tuple[str, float]]:
            return [(line, read(gauges, stats)) for line, read in lines]

        return _Family(_header(name, kind, help_text), ((name, read_all),))

    def _histogram(self, name: str, help_text: str, pick: Callable[[EngineStats], Histogram]) -> _Family:
        bounds = [*(repr(bound) for bound in pick(EngineStats()).bounds), "+Inf"]
        lines = [self._line(f"{name}_bucket", (("le", bound),)) for bound in bounds]
        count, total = self._line(f"{name}_count", ()), self._line(f"{name}_sum", ())

        def buckets(_: Gauges, stats: EngineStats) -> Iterable[tuple[str, float]]:
            below = 0
            for line, inside in zip(lines, pick(stats).counts, strict=True):
                below += inside
                yield line, below

        return _Family(
            _header(name, "histogram", help_text),
            (
                (f"{name}_bucket", buckets),
                (f"{name}_count", lambda _, stats: ((count, pick(stats).count),)),
                (f"{name}_sum", lambda _, stats: ((total, pick(stats).total),)),
            ),
        )

    def _line(self, name: str, labels: Labels) -> str:
        own = self._own[1:] if name.startswith(_WITHOUT_ENGINE) else self._own
        pairs = sorted((*own, *labels))
        inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in pairs)
        return f"{name}{{{inside}}}"


def _header(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _cache_config(spec: EngineSpec) -> Labels:
    return (
        ("block_size", str(spec.block_size)),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "False"),
        ("gpu_memory_utilization", "0.92"),
        ("kv_cache_max_concurrency", f"{spec.kv_tokens / spec.longest}"),
        ("kv_cache_size_tokens", str(spec.total_blocks * spec.block_size)),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", str(spec.total_blocks)),
        ("num_gpu_blocks_override", "None"),
        ("prefix_caching_hash_algo", "sha256"),
        ("sliding_window", "None"),
    )
