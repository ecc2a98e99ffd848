"""Controller `vegas`: requests at once from latency, the classical law (Brakmo and Peterson 1995).

It takes the least latency it ever saw for that of an idle system, and the distance from there for queueing. Its known
failings follow from that, and are shown in `tests/sim/test_known_failings.py`: longer prompts look like congestion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from extproc.config import FailurePolicy, LatencySignal, VegasPolicy
from extproc.fleet import EngineSample, Fleet
from extproc.model import Demand, Latency, Load, PoolState

SAMPLED_FOR_S = 10.0
"""The engines' means are not used for so long after a sample of the gateway's own: longer than most answers take, and
one answer per engine is sampled at a time."""

_OF_REQUEST: dict[LatencySignal, Callable[[Latency], float | None]] = {
    LatencySignal.TTFT: lambda latency: latency.ttft_s,
    LatencySignal.TPOT: lambda latency: latency.tpot_s,
}
_OF_ENGINE: dict[LatencySignal, Callable[[EngineSample], float | None]] = {
    LatencySignal.TTFT: lambda sample: sample.ttft_mean_s,
    LatencySignal.TPOT: lambda sample: sample.tpot_mean_s,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The least latency ever, and the moving mean, seconds."""

    base_s: float
    ewma_s: float

    def with_one(self, rtt_s: float, smoothing: float) -> Seen:
        return Seen(min(self.base_s, rtt_s), smoothing * self.ewma_s + (1 - smoothing) * rtt_s)


@dataclass(frozen=True, slots=True)
class Track:
    """One signal's limit and what moved it. The two sources are kept apart: one leaves out ways that the other has in it.

    `sampled_at`: of the last sample taken at the gateway; `reported_at`: of the last engine sample used.
    """

    limit: float
    gateway: Seen | None = None
    engines: Seen | None = None
    sampled_at: float = -math.inf
    reported_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class VegasMemory:
    """What the law remembers: a track per signal."""

    tracks: Mapping[LatencySignal, Track] = field(default_factory=lambda: MappingProxyType({}))


class Vegas:
    """One step of the law per finished request whose latency is known, or per report of several on its mean.

    Where the gateway does not sample (Envoy does not let it, nothing streams), a report is an engine sample in which
    requests finished: one step on the mean over the engines. Says nothing of rejection or saturation.
    """

    def __init__(self, policy: VegasPolicy, failure: FailurePolicy, memory: VegasMemory | None = None) -> None:
        self._policy = policy
        self._stale_after_s = failure.stale_after_s
        self.memory = memory or VegasMemory()

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        reporting = fleet.reporting(now, self._stale_after_s)
        tracks = dict(self.memory.tracks)
        for signal in self._policy.signals:
            track = tracks.get(signal) or Track(limit=self._policy.min_limit)
            for latency in demand.latencies:
                track = self._sampled(track, _OF_REQUEST[signal](latency), now)
            if demand.latencies and reporting and now - track.sampled_at > SAMPLED_FOR_S:
                track = self._reported(track, signal, reporting)
            tracks[signal] = track
        self.memory = VegasMemory(MappingProxyType(tracks))
        tightest = min(self._policy.signals, key=lambda signal: self._within(tracks[signal].limit))
        limit = Load(math.inf, math.floor(self._within(tracks[tightest].limit)))
        return PoolState(
            limits=(limit, limit, limit),
            pressure_at=previous.pressure_at,
            reason=f"vegas-{tightest}",
            at=now,
            engines_reporting=len(reporting),
        )

    def _sampled(self, track: Track, rtt_s: float | None, now: float) -> Track:
        if rtt_s is None or not 0 < rtt_s < math.inf:
            return track
        seen = self._seen(track.gateway, rtt_s)
        return replace(track, limit=self._moved(track.limit, seen), gateway=seen, sampled_at=now)

    def _reported(self, track: Track, signal: LatencySignal, reporting: tuple[EngineSample, ...]) -> Track:
        newest = max(sample.at for sample in reporting)
        stated = [rtt_s for sample in reporting if (rtt_s := _OF_ENGINE[signal](sample)) and 0 < rtt_s < math.inf]
        if newest <= track.reported_at or not stated:
            return track
        seen = self._seen(track.engines, sum(stated) / len(stated))
        return replace(track, limit=self._moved(track.limit, seen), engines=seen, reported_at=newest)

    def _seen(self, seen: Seen | None, rtt_s: float) -> Seen:
        return Seen(rtt_s, rtt_s) if seen is None else seen.with_one(rtt_s, self._policy.smoothing)

    def _moved(self, limit: float, seen: Seen) -> float:
        policy = self._policy
        delay_s, threshold_s = seen.ewma_s - seen.base_s, policy.alpha * seen.base_s
        if delay_s < threshold_s:
            return self._within(limit + 1)
        if delay_s > threshold_s * (1 + policy.beta):
            return self._within(limit * policy.decrease)
        return limit

    def _within(self, limit: float) -> float:
        """A limit remembered from under another policy may lie outside this one's bounds."""
        return min(float(self._policy.max_limit), max(float(self._policy.min_limit), limit))
