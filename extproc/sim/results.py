"""From observations to the numbers of a run: pure arithmetic, the shape of the demo's JSON.

A request is *within target* when its answer is whole, its first token came within its priority's TTFT target and its
mean time per output token is at most the TPOT target. Times to first token are those of every request that got one,
whole answer or not; of the others there is no such time, and `failed` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from extproc.model import PRIORITIES, Priority
from extproc.sim.load import End, Observation

TTFT_TARGET_S = {Priority.P0: 1.0, Priority.P1: 3.0, Priority.P2: 10.0}
TPOT_TARGET_S = 0.060


class ClassResult(Struct, frozen=True, kw_only=True):
    """One priority. sent = completed + rejected + failed; seconds; None where no request has such a time."""

    sent: int
    completed: int
    within_target: int
    rejected: int
    failed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None


class RetryAfterResult(Struct, frozen=True):
    """Over all refusals: what clients were told to wait, in seconds; None while nothing was refused."""

    min: float | None
    max: float | None
    distinct: int


class RunResult(Struct, frozen=True, kw_only=True):
    """One run. `goodput_tokens_per_s`: output tokens of the requests within target, per second of the window."""

    classes: dict[str, ClassResult]
    goodput_tokens_per_s: float
    preemptions: int
    kv_usage_mean: float
    kv_usage_max: float
    retry_after_s: RetryAfterResult


class DemoResult(Struct, frozen=True):
    """The whole demo, as `--json` writes it. `offered_ratio`: offered load in units of what the engines can do."""

    offered_ratio: float
    seconds: float
    sent_late_p99_s: float
    runs: dict[str, RunResult]


class EngineReadings(Struct, frozen=True):
    """What the engines' own metrics said over a run (`watch.py`)."""

    kv_usage_mean: float
    kv_usage_max: float
    preemptions: int


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` (0..1) of the values do not exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def within_target(seen: Observation) -> bool:
    if seen.end is not End.COMPLETED or seen.ttft_s is None:
        return False
    tpot_s = seen.tpot_s
    return seen.ttft_s <= TTFT_TARGET_S[seen.priority] and (tpot_s is None or tpot_s <= TPOT_TARGET_S)


def summarise(observations: Sequence[Observation], engines: EngineReadings, *, seconds: float) -> RunResult:
    good = sum(seen.tokens for seen in observations if within_target(seen))
    waits = [seen.retry_after_s for seen in observations if seen.retry_after_s is not None]
    return RunResult(
        classes={str(priority): _class_result(observations, priority) for priority in PRIORITIES},
        goodput_tokens_per_s=round(good / seconds, 1),
        preemptions=engines.preemptions,
        kv_usage_mean=round(engines.kv_usage_mean, 3),
        kv_usage_max=round(engines.kv_usage_max, 3),
        retry_after_s=RetryAfterResult(min(waits, default=None), max(waits, default=None), len(set(waits))),
    )


def _class_result(observations: Sequence[Observation], priority: Priority) -> ClassResult:
    mine = [seen for seen in observations if seen.priority is priority]
    ttfts = [seen.ttft_s for seen in mine if seen.ttft_s is not None]
    tpots = [tpot for seen in mine if seen.end is End.COMPLETED and (tpot := seen.tpot_s) is not None]
    ends = [seen.end for seen in mine]
    return ClassResult(
        sent=len(mine),
        completed=ends.count(End.COMPLETED),
        within_target=sum(map(within_target, mine)),
        rejected=ends.count(End.REJECTED),
        failed=ends.count(End.FAILED),
        ttft_p50_s=_rounded(percentile(ttfts, 0.50)),
        ttft_p99_s=_rounded(percentile(ttfts, 0.99)),
        tpot_p50_s=_rounded(percentile(tpots, 0.50)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
