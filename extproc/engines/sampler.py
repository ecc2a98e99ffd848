"""From cumulative readings of one engine to its `EngineSample`: rates, means and percentiles over the last seconds.

What every engine kind shares; what the series are called is the kind's own module.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import sub
from typing import Protocol

from msgspec import Struct

from extproc.fleet import EngineSample

WINDOW_S = 5.0
"""Rates, means and percentiles look back this far: long enough for some requests to end, short enough to be about
now."""

ITERATION_S = 1.0
"""The step time looks back this far: every step is in it, so it needs no more, and what goes by it must be quick."""

SPACING_S = 0.25
"""Readings kept are at least this far apart, so that memory does not depend on the scrape interval."""

LEAST_SPAN_S = 0.5
"""No rate from readings closer than this: counters move once per engine step, and two steps are not a rate."""

LEAST_ANSWERS = 8
"""No mean length from fewer answers, however long they take to come: one short warm-up must not stand for all."""

MAX_GAP_S = 4 * WINDOW_S
"""After a longer gap in readings the window starts anew: what happened meanwhile is not of late."""


class Histogram(Struct, frozen=True, gc=False):
    """A cumulative histogram, or the difference of two. `bounds`: the buckets' upper ends, ascending; `up_to`: observations
    up to each."""

    count: float
    sum: float
    bounds: tuple[float, ...] = ()
    up_to: tuple[float, ...] = ()

    def since(self, older: Histogram) -> Histogram:
        """Observations made after `older`. Buckets only where both have the same bounds."""
        count, total = self.count - older.count, self.sum - older.sum
        if self.bounds != older.bounds:
            return Histogram(count, total)
        return Histogram(count, total, self.bounds, tuple(map(sub, self.up_to, older.up_to)))

    def mean_since(self, older: Histogram) -> float | None:
        """The mean of `since`, without its buckets."""
        return Histogram(self.count - older.count, self.sum - older.sum).mean

    @property
    def mean(self) -> float | None:
        """None without observations; less than one is none, whatever an engine says."""
        return self.sum / self.count if self.count >= 1 and self.sum >= 0 else None

    def quantile(self, q: float) -> float | None:
        """Interpolated linearly inside its bucket, as PromQL's `histogram_quantile` does; None without observations.

        In the unbounded bucket: the largest bound known, which is then a lower bound of the truth.
        """
        if not self.up_to or self.up_to[-1] <= 0:
            return None
        rank = q * self.up_to[-1]
        lower, below = 0.0, 0.0
        for bound, n in zip(self.bounds, self.up_to, strict=True):
            if n >= rank:
                if bound == math.inf:
                    return lower
                return lower + (bound - lower) * (rank - below) / (n - below) if n > below else bound
            lower, below = bound, n
        return lower


class Reading(Struct, frozen=True, gc=False):
    """One engine's metrics at one moment, cumulative since its start. None is missing, never zero.

    `waiting`: for capacity only, where the engine tells the reasons apart. `output`: output tokens per finished
    request. `others`: the text held series that were not asked for.
    """

    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    output: Histogram | None = None
    others: bool = False


class Adapter(Protocol):
    """One engine kind: which sample names to ask for, and how to read an answer."""

    @property
    def names(self) -> Sequence[str]: ...

    def read(self, text: str, content_type: str = "") -> Reading:
        """Raises `BadMetrics`, naming the required series that are absent."""


class Sampler:
    """One engine's last readings. Feed it in order of time."""

    def __init__(self, engine: str, *, stale_after_s: float) -> None:
        self._engine = engine
        self.stale_after_s = stale_after_s
        self._kept: deque[tuple[float, Reading]] = deque()
        self._last: Reading | None = None
        self._last_at = -math.inf
        self._moved_at = -math.inf
        self._answers_from: tuple[float, Histogram] | None = None
        self._mean_output_tokens: float | None = None

    def sample(self, at: float, reading: Reading) -> EngineSample:
        """The sample for a reading taken at `at` (clock seconds)."""
        if self._last is not None and (_restarted(self._last, reading) or at - self._last_at > MAX_GAP_S):
            self._kept.clear()
            self._answers_from = None
        frozen = self._stands_still(at, reading)
        while len(self._kept) > 1 and self._kept[1][0] <= at - WINDOW_S:
            self._kept.popleft()
        then, base = self._kept[0] if self._kept else (at, reading)
        if not self._kept or at - self._kept[-1][0] >= SPACING_S:
            self._kept.append((at, reading))
        self._last, self._last_at = reading, at
        span_s = at - then
        ttft, tpot = _since(reading.ttft, base.ttft), _since(reading.tpot, base.tpot)
        self._read_answers(at, reading.output)
        return EngineSample(
            engine=self._engine,
            at=at,
            kv_usage=reading.kv_usage,
            kv_capacity_tokens=reading.kv_capacity_tokens,
            running=reading.running,
            waiting=reading.waiting,
            iteration_s=self._iteration_s(at, reading.tpot),
            preemptions_per_s=_rate(reading.preemptions, base.preemptions, span_s),
            prompt_tokens_per_s=_rate(reading.prompt_tokens, base.prompt_tokens, span_s),
            generation_tokens_per_s=_rate(reading.generation_tokens, base.generation_tokens, span_s),
            mean_output_tokens=self._mean_output_tokens,
            ttft_mean_s=ttft.mean if ttft else None,
            ttft_p95_s=ttft.quantile(0.95) if ttft else None,
            tpot_mean_s=tpot.mean if tpot else None,
            tpot_p95_s=tpot.quantile(0.95) if tpot else None,
            frozen=frozen,
        )

    def _iteration_s(self, at: float, tpot: Histogram | None) -> float | None:
        base = next((kept for then, kept in reversed(self._kept) if at - then >= ITERATION_S), self._kept[0][1])
        return None if tpot is None or base.tpot is None else tpot.mean_since(base.tpot)

    def _read_answers(self, at: float, output: Histogram | None) -> None:
        """A new mean length whenever enough answers have ended and the window has passed; until then the last one."""
        if output is None or self._answers_from is None:
            self._answers_from = None if output is None else (at, output)
            return
        began, base = self._answers_from
        if output.count - base.count >= LEAST_ANSWERS and at - began >= WINDOW_S:
            self._mean_output_tokens = output.mean_since(base)
            self._answers_from = at, output

    def _stands_still(self, at: float, reading: Reading) -> bool:
        """Work is there, yet nothing at all has moved for the staleness time: an engine that hangs while its page
        answers.

        Gauges count as movement beside the token counters: a long prompt is prefilled for seconds without a token
        counted, but its blocks fill up. Waiting without running counts as work: a hung scheduler shows just that.
        Without token counters nothing can be said.
        """
        busy = (reading.running or 0) + (reading.waiting or 0) > 0
        counted = reading.generation_tokens is not None or reading.prompt_tokens is not None
        if not busy or not counted or self._last is None or _moving(self._last) != _moving(reading):
            self._moved_at = at
        return at - self._moved_at >= self.stale_after_s


def _moving(reading: Reading) -> tuple[float | None, ...]:
    return (
        reading.prompt_tokens,
        reading.generation_tokens,
        reading.preemptions,
        reading.kv_usage,
        reading.running,
        reading.waiting,
    )


def _restarted(older: Reading, newer: Reading) -> bool:
    """Some counter went down: the engine began anew, and differences across that moment mean nothing."""
    pairs = [
        (older.prompt_tokens, newer.prompt_tokens),
        (older.generation_tokens, newer.generation_tokens),
        (older.preemptions, newer.preemptions),
    ]
    for a, b in ((older.ttft, newer.ttft), (older.tpot, newer.tpot), (older.output, newer.output)):
        if a is not None and b is not None:
            pairs.append((a.count, b.count))
    return any(before is not None and after is not None and after < before for before, after in pairs)


def _rate(newer: float | None, older: float | None, span_s: float) -> float | None:
    if newer is None or older is None or span_s < LEAST_SPAN_S:
        return None
    return (newer - older) / span_s


def _since(newer: Histogram | None, older: Histogram | None) -> Histogram | None:
    return None if newer is None or older is None else newer.since(older)
