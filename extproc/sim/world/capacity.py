"""What one engine can do: output tokens per second within the targets, by workload and chunk. The unit of rho."""

from __future__ import annotations

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.traffic import Lengths, Workload

CHAT = Workload()
LONG = Workload("long", prompt=Lengths(4000, 0.7, 12_000))
BIMODAL = Workload("bimodal", prompt=Lengths(50, 0.2, 100), long=0.05)

CAPACITY_TOKENS_PER_S: dict[tuple[str, int], float] = {
    ("chat", 1024): 5480.0,
    ("chat", 4096): 5600.0,
    ("flood", 1024): 5480.0,
    ("flood", 4096): 5600.0,
    ("long", 1024): 850.0,
    ("long", 4096): 850.0,
    ("bimodal", 1024): 3000.0,
    ("bimodal", 4096): 3400.0,
}
"""Measured with constant limits."""


def capacity(workload: Workload, spec: EngineSpec) -> float:
    """Output tokens per second of one engine at its best."""
    return CAPACITY_TOKENS_PER_S[workload.name, spec.chunk]


def same_requests(rho: float, other: Workload, chunk: int) -> float:
    """The load of as many requests of the other workload as make `rho` of `CHAT`; their answers are as long."""
    return rho * CAPACITY_TOKENS_PER_S[CHAT.name, chunk] / CAPACITY_TOKENS_PER_S[other.name, chunk]
