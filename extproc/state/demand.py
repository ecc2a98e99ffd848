"""What replicas tell the leader of their traffic, so that its controllers see the pool and not one replica. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from extproc.model import NOTHING, Demand, Finished, Load

HEARD_FOR_S = 2.0
"""Older counters are of a replica that is gone."""

T = TypeVar("T")

_LENGTH = 26
_LOADS_END = 19
_read = msgspec.json.Decoder(tuple[float, ...]).decode


@dataclass(frozen=True, slots=True)
class Told:
    """One replica's counters. `demand` without latencies: those are in `finished`."""

    demand: Demand
    finished: Finished = Finished()


def pack_told(demand: Demand, finished: Finished) -> str:
    """As text: Lua's msgpack knows no other kind of string."""
    loads = (*demand.in_use, *demand.waiting, demand.drain_per_s or NOTHING, demand.mean_cost)
    flat = (*demand.offered_per_s, *(part for load in loads for part in (load.tokens, load.slots)))
    flat += (*finished.counts, *finished.sums_s, int(demand.paced))
    return msgspec.json.encode(flat).decode()


def read_told(text: str) -> Told:
    """Raises msgspec.DecodeError or ValueError on what is not one of ours."""
    flat = _read(text)
    if len(flat) != _LENGTH:
        raise ValueError(f"{len(flat)} numbers where {_LENGTH} were expected")
    loads = [Load(flat[i], flat[i + 1]) for i in range(3, _LOADS_END, 2)]
    demand = Demand(
        offered_per_s=(flat[0], flat[1], flat[2]),
        in_use=(loads[0], loads[1], loads[2]),
        waiting=(loads[3], loads[4], loads[5]),
        drain_per_s=None if loads[6].empty else loads[6],
        mean_cost=loads[7],
        paced=flat[25] > 0,
    )
    return Told(demand, Finished((flat[19], flat[20], flat[21]), (flat[22], flat[23], flat[24])))


def merged(demands: Sequence[Demand]) -> Demand:
    """Rates and loads add up; the mean cost is weighted by what is offered."""
    if not demands:
        return Demand()
    offered = [sum(demand.offered_per_s) for demand in demands]
    weight = sum(offered)
    drains = [demand.drain_per_s for demand in demands if demand.drain_per_s is not None]
    mean = sum((demand.mean_cost.scaled(rate) for demand, rate in zip(demands, offered, strict=True)), NOTHING)
    return Demand(
        offered_per_s=_three(sum(demand.offered_per_s[p] for demand in demands) for p in range(3)),
        in_use=_three(sum((demand.in_use[p] for demand in demands), NOTHING) for p in range(3)),
        waiting=_three(sum((demand.waiting[p] for demand in demands), NOTHING) for p in range(3)),
        drain_per_s=sum(drains, NOTHING) if drains else None,
        mean_cost=mean.scaled(1 / weight) if weight > 0 else demands[0].mean_cost,
        paced=any(demand.paced for demand in demands),
    )


def _three(values: Iterable[T]) -> tuple[T, T, T]:
    first, second, third = values
    return first, second, third
