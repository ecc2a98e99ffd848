"""Open-loop traffic: who asks when, for how much. Pure: the same seed gives the same requests, to the byte.

Offered load is exact: requests are drawn until their answers add up to what the phase offers, and then spread over it at
random, which is a Poisson process given its count. So no seed is a little luckier than another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

from extproc.model import PRIORITIES, Priority

BURST_PERIOD_S, BURST_SHARE, BURST_FACTOR = 4.0, 0.25, 2.5
"""Bursty traffic: a quarter of each 4 s brings 2.5 times the mean, the rest of it half of the mean."""
_BYTES_PER_TOKEN, _BYTES_SIGMA = 4.0, 0.15
"""How much a token measures differs between texts: what an estimate by bytes gets wrong."""
_STATED_MAX, _STATES_MAX = 1000, 0.1
"""One request in ten states `max_tokens`, far above what it needs, as defaults of frameworks do."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, lognormal: median and sigma of the logarithm, cut at `most`."""

    median: float
    sigma: float
    most: int

    def draw(self, random: Random) -> int:
        return max(2, min(self.most, round(random.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant. `weight`: of its share by policy; `traffic`: its part of each priority's requests, relative to the others."""

    name: str
    weight: float = 1.0
    traffic: tuple[float, float, float] = (1.0, 1.0, 1.0)


FOUR_ALIKE = tuple(Sender(f"team-{letter}") for letter in "abcd")


@dataclass(frozen=True, slots=True)
class Workload:
    """What requests look like. `mix`: share of each priority; `long`: share of requests whose prompt has `long_tokens`, never
    of P0, whose first token no engine could bring in time."""

    name: str = "chat"
    mix: tuple[float, float, float] = (0.15, 0.35, 0.50)
    prompt: Lengths = Lengths(500, 0.7, 8000)
    output: Lengths = Lengths(200, 0.7, 1000)
    long: float = 0.0
    long_tokens: int = 32_000
    senders: tuple[Sender, ...] = FOUR_ALIKE


class Arrival(NamedTuple):
    """One request as its client means to send it, `at_s` after the start. `leaves_after_s`: inf, unless it leaves whatever
    happens. `obeys`: what its client does with a Retry-After. `text_bytes`: of its prompt. `bypasses`: it goes to the engines by a
    way of its own."""

    at_s: float
    priority: Priority
    tenant: str
    prompt_tokens: int
    output_tokens: int
    text_bytes: int
    max_tokens: int | None = None
    leaves_after_s: float = math.inf
    obeys: bool = True
    pool: int = 0
    bypasses: bool = False


@dataclass(frozen=True, slots=True)
class Crowd:
    """How clients behave in a phase. `leaving`: share that leaves within `leaves_within_s` of sending; `deaf`: share that
    ignores Retry-After; `bursty`: see `BURST_PERIOD_S`; `bypassing`: share that goes to the engines past the service."""

    leaving: float = 0.0
    leaves_within_s: float = 0.2
    deaf: float = 0.0
    bursty: bool = False
    bypassing: float = 0.0


@lru_cache(maxsize=8)
def arrivals(
    workload: Workload, *, output_tokens: float, from_s: float, seconds: float, crowd: Crowd, pools: int, seed: str
) -> tuple[Arrival, ...]:
    """Requests whose answers add up to `output_tokens`, those of who leaves at once not counted, in order of their times.

    Kept until others have been asked for: every setup meets the same, and so does each of the oracle's runs.
    """
    sizes, times, people = (Random(f"{seed}/{part}") for part in ("sizes", "times", "people"))
    drawn = list(_drawn(workload, output_tokens, crowd=crowd, pools=pools, sizes=sizes, people=people))
    moments = sorted(times.random() for _ in drawn)
    at_s = [_bursting(u, seconds) if crowd.bursty else u * seconds for u in moments]
    return tuple([Arrival(from_s + at, *one[1:]) for one, at in zip(drawn, at_s, strict=True)])


def _drawn(
    workload: Workload, output_tokens: float, *, crowd: Crowd, pools: int, sizes: Random, people: Random
) -> Iterator[Arrival]:
    left = output_tokens
    shares = _Shares(workload)
    while left > 0:
        arrival = _one(workload, shares, sizes=sizes, people=people, pool=people.randrange(pools) if pools > 1 else 0)
        leaves = crowd.leaving > 0 and people.random() < crowd.leaving
        if leaves:
            arrival = arrival._replace(leaves_after_s=people.random() * crowd.leaves_within_s)
        else:
            left -= arrival.output_tokens
        if crowd.deaf:
            arrival = arrival._replace(obeys=people.random() >= crowd.deaf)
        if crowd.bypassing:
            arrival = arrival._replace(bypasses=people.random() < crowd.bypassing)
        yield arrival


class _Shares:
    """Of a workload's priorities, and of its senders in each: added up, as they are drawn by."""

    def __init__(self, workload: Workload) -> None:
        self.mix = list(accumulate(workload.mix))
        self.senders = [list(accumulate(sender.traffic[p] for sender in workload.senders)) for p in PRIORITIES]


def _one(workload: Workload, shares: _Shares, *, sizes: Random, people: Random, pool: int) -> Arrival:
    priority = people.choices(PRIORITIES, cum_weights=shares.mix)[0]
    tenant = people.choices(workload.senders, cum_weights=shares.senders[priority])[0]
    prompt = workload.prompt.draw(sizes)
    if workload.long and priority is not Priority.P0 and people.random() < workload.long / (1 - workload.mix[0]):
        prompt = workload.long_tokens
    return Arrival(
        at_s=0.0,
        priority=priority,
        tenant=tenant.name,
        prompt_tokens=prompt,
        output_tokens=workload.output.draw(sizes),
        text_bytes=round(prompt * _BYTES_PER_TOKEN * sizes.lognormvariate(0.0, _BYTES_SIGMA)),
        max_tokens=_STATED_MAX if people.random() < _STATES_MAX else None,
        pool=pool,
    )


def _bursting(u: float, seconds: float) -> float:
    """Where the share `u` of all requests has come, in whole periods of bursts."""
    periods = max(1.0, round(seconds / BURST_PERIOD_S))
    period, within = divmod(u * periods, 1.0)
    in_burst = BURST_SHARE * BURST_FACTOR
    if within < in_burst:
        return (period + within / BURST_FACTOR) * seconds / periods
    place = BURST_SHARE + (within - in_burst) * (1 - BURST_SHARE) / (1 - in_burst)
    return (period + place) * seconds / periods
