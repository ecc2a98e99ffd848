"""Inversions: a P2 that was let in somewhere while a P0 waited somewhere, as clients and engine saw it. Pure.

A P0 waits from when its client sent it until it reaches the engine. Nobody can hear of one at a replica that stands still
or has lost its line to the store, nor of one that Envoy lets by in the end because its replica was gone: inversions of those
are counted apart, as unheard. Once the replica is back, its P0 counts as waiting from that moment.

Who is on the way to a verdict, or with one, waits for nobody's turn, and on a busy machine the way takes long. So it is
measured beside the load, by requests that nobody limits: it is taken off the wait, and a P2 that reached the engine before a
P0 by less than the way may have been let in after it. What was sent while a replica stood still is no measure of the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.shared_engine import Arrival
from bench.shared_load import Sent


@dataclass(frozen=True, slots=True)
class Unheard:
    """When nobody could hear of a replica's waiters. `still`: it did not run."""

    replica: str
    since: float
    until: float
    still: bool = True


@dataclass(frozen=True, slots=True)
class Way:
    """A request that nobody limits: when its client sent it, and when it reached the engine."""

    at: float
    came: float


@dataclass(frozen=True, slots=True)
class Inversion:
    """`waited_s`: how long the P0 had waited, where it could be heard of, when the P2 reached the engine; less the way.
    `raw_s`: the way included, and however shortly before the P0 it came."""

    waited_s: float
    raw_s: float
    p0: Sent
    p0_came: Arrival | None
    p2: Arrival
    heard: bool


def inversions(
    sent: Sequence[Sent],
    came: Mapping[int, Arrival],
    p2s: Iterable[Arrival],
    unheard: Sequence[Unheard] = (),
    ways: Sequence[Way] = (),
) -> list[Inversion]:
    """`came`: what reached the engine, by number. `p2s`: those of them that were admitted. The longest first."""
    found = []
    p0s = [(one, came.get(one.number)) for one in sent if one.priority == "P0" and one.status in (0, 200)]
    for p2 in p2s:
        for one, arrival in p0s:
            if one.at < p2.at < (float("inf") if arrival is None else arrival.at):
                found.append(_inversion(one, arrival, p2, unheard, ways))
    return sorted(found, key=lambda inversion: -inversion.waited_s)


def longest_s(found: Iterable[Inversion], *, heard: bool) -> float:
    return max((one.waited_s for one in found if one.heard is heard), default=0.0)


def _inversion(
    one: Sent, arrival: Arrival | None, p2: Arrival, unheard: Sequence[Unheard], ways: Sequence[Way]
) -> Inversion:
    since, heard = one.at, arrival is None or arrival.admitted
    for gap in unheard:
        if arrival is not None and gap.replica == arrival.replica and gap.since <= p2.at:
            if p2.at < gap.until:
                heard = False
            else:
                since = max(since, gap.until)
    way_s = max((way.came - way.at for way in ways if way.at < p2.at and way.came > since), default=0.0)
    raw_s = p2.at - since
    on_its_way = arrival is not None and arrival.at - p2.at < way_s
    return Inversion(0.0 if on_its_way else max(0.0, raw_s - way_s), raw_s, one, arrival, p2, heard)


def measured_ways(sent: Iterable[Sent], came: Mapping[int, Arrival], unheard: Sequence[Unheard]) -> list[Way]:
    ways = [Way(one.at, came[one.number].at) for one in sent if one.number in came]
    stops = [gap for gap in unheard if gap.still]
    return [way for way in ways if not any(gap.since < way.came and way.at < gap.until for gap in stops)]
