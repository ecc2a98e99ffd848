"""vLLM's metrics: what its series are called over the versions, and what they mean. Pure: text in, reading out.

Several series of one name (data parallel: one per `engine`; several served names: one per `model_name`) are one engine
to us: requests, tokens and capacity add up, usage is the mean weighted by the capacity of its `engine`. A value that
is NaN, negative, above what any engine can count, or a usage above 1 is missing; a sum with a missing part is missing
as a whole, or the next difference would look like a restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.engines.metrics_text import MetricsText, Scan, Series
from extproc.engines.sampler import Histogram, Reading
from extproc.errors import BadMetrics

RUNNING = "vllm:num_requests_running"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
CACHE_CONFIG = "vllm:cache_config_info"
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
PROMPT_TOKENS = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATION_TOKENS = ("vllm:generation_tokens_total", "vllm:generation_tokens")
TTFT = ("vllm:time_to_first_token_seconds",)
TPOT = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Seconds between two tokens of one request. Every running request gets a token per engine step, so its mean is also
the best view of the step's duration (`iteration_s`) that vLLM gives; stalls of preempted requests are in it, as users
feel them."""
OUTPUT = "vllm:request_generation_tokens"

_NAMES = (
    RUNNING,
    WAITING_BY_REASON,
    WAITING,
    *KV_USAGE,
    CACHE_CONFIG,
    *PREEMPTIONS,
    *PROMPT_TOKENS,
    *GENERATION_TOKENS,
    *(f"{name}{part}" for name in (*TTFT, *TPOT) for part in ("_count", "_sum", "_bucket")),
    f"{OUTPUT}_count",
    f"{OUTPUT}_sum",
)


_MOST = 1e18
"""More than any engine counts. Without a bound two values of 1e308 add up to infinity, of which there is no integer."""


class Vllm:
    """The adapter. Stateless."""

    def __init__(self) -> None:
        self._text = MetricsText(_NAMES)

    @property
    def names(self) -> Sequence[str]:
        return self._text.names

    def read(self, text: str, content_type: str = "") -> Reading:
        """Raises `BadMetrics` where running, waiting or KV usage has no series at all (a value that is NaN has one)."""
        scan = self._text.scan(text, content_type)
        usage = _first_valid(scan, KV_USAGE)
        by_reason = scan.first(WAITING_BY_REASON)
        if by_reason is not None:
            by_reason = tuple(series for series in by_reason if series.labels.get("reason") == "capacity")
        waiting = by_reason or scan.first(WAITING)
        running = scan.first(RUNNING)
        absent = [
            name
            for name, series in ((RUNNING, running), (WAITING, waiting), (" or ".join(KV_USAGE), usage))
            if series is None
        ]
        if absent or running is None or waiting is None or usage is None:
            raise BadMetrics(f"series missing: {', '.join(absent)}")
        capacities = _capacities(scan.first(CACHE_CONFIG) or ())
        return Reading(
            kv_usage=_usage(usage, capacities),
            kv_capacity_tokens=sum(capacities.values()) or None,
            running=_count(running),
            waiting=_count(waiting),
            preemptions=_total(scan.first(*PREEMPTIONS)),
            prompt_tokens=_total(scan.first(*PROMPT_TOKENS)),
            generation_tokens=_total(scan.first(*GENERATION_TOKENS)),
            ttft=_histogram(scan, TTFT),
            tpot=_histogram(scan, TPOT),
            output=_histogram(scan, (OUTPUT,)),
            others=scan.others,
        )


def _valid(value: float, most: float = _MOST) -> bool:
    return 0.0 <= value <= most


def _first_valid(scan: Scan, names: Sequence[str]) -> tuple[Series, ...] | None:
    """Newest name first, but one without a single valid value does not hide an older one that has some."""
    present = [scan.series[name] for name in names if name in scan.series]
    valid = (series for series in present if any(_valid(one.value, 1.0) for one in series))
    return next(valid, present[0] if present else None)


def _capacities(infos: Sequence[Series]) -> dict[str, int]:
    """KV tokens by `engine` label; engines whose capacity is not stated are absent."""
    found: dict[str, int] = {}
    for info in infos:
        labels = info.labels
        tokens = _integer(labels.get("kv_cache_size_tokens"))
        blocks, block_size = _integer(labels.get("num_gpu_blocks")), _integer(labels.get("block_size"))
        if tokens is None and blocks is not None and block_size is not None:
            tokens = blocks * block_size
        if tokens:
            found[labels.get("engine", "")] = tokens
    return found


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def _usage(series: Sequence[Series], capacities: dict[str, int]) -> float | None:
    valid = [one for one in series if _valid(one.value, 1.0)]
    if not valid:
        return None
    weights = [capacities.get(one.labels.get("engine", "")) for one in valid]
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(valid):
        known = [1] * len(valid)
    mean = sum(one.value * weight for one, weight in zip(valid, known, strict=True)) / sum(known)
    return min(1.0, mean)


def _total(series: Sequence[Series] | None) -> float | None:
    if not series or not all(_valid(one.value) for one in series):
        return None
    return sum(one.value for one in series)


def _count(series: Sequence[Series]) -> int | None:
    total = _total(series)
    return None if total is None else int(total)


def _histogram(scan: Scan, names: Sequence[str]) -> Histogram | None:
    for name in names:
        count, total = _total(scan.first(f"{name}_count")), _total(scan.first(f"{name}_sum"))
        if count is None or total is None:
            continue
        buckets: dict[float, float] = {}
        for one in scan.series.get(f"{name}_bucket", ()):
            bound = _bound(one.labels.get("le", ""))
            if bound is None or not _valid(one.value):
                buckets.clear()
                break
            buckets[bound] = buckets.get(bound, 0.0) + one.value
        bounds = tuple(sorted(buckets))
        return Histogram(count, total, bounds, tuple([buckets[bound] for bound in bounds]))
    return None


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound
