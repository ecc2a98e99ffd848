"""Inversions: a P2 that was let in somewhere while a P0 waited somewhere, as clients and engine saw it. Pure.

A P0 waits from when its client sent it until it reaches the engine. Nobody can hear of one at a replica that stands still
or has lost its line to the store, nor of one that Envoy lets by in the end because its replica was gone: inversions of those
are counted apart, as unheard. Once the replica is back, its P0 counts as waiting from that moment.

Where the load keeps this machine busy, the way itself takes long, and who is on the way to a verdict or with it waits for
nobody's turn. So the way is measured beside it, by requests that nobody limits, and taken off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.shared_engine import Arrival
from bench.shared_load import Sent


@dataclass(frozen=True, slots=True)
class Unheard:
    """When nobody could hear of a replica's waiters."""

    replica: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Way:
    """A request that nobody limits: when its client sent it, and when it reached the engine."""

    at: float
    came: float


@dataclass(frozen=True, slots=True)
class Inversion:
    """`waited_s`: how long the P0 had waited, where it could be heard of, when the P2 reached the engine; less the way.
    `raw_s`: the way included."""

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
    return Inversion(max(0.0, p2.at - since - way_s), p2.at - since, one, arrival, p2, heard)
