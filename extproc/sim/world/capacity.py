"""What one engine can do: output tokens per second within the targets, by workload and chunk. The unit of rho."""

from __future__ import annotations

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.traffic import Lengths, Workload

CHAT = Workload()
LONG = Workload("long", prompt=Lengths(4000, 0.7, 12_000))
BIMODAL = Workload("bimodal", prompt=Lengths(50, 0.2, 100), long=0.05)

SMALL_CACHE_TOKENS = 60_000
"""So few KV tokens that they bind, and not sequences: some 80 conversations of `CHAT`."""
SLOW = 0.4
"""Engines so slow that steps bind: with all sequences that they take, a token comes later than promised."""

CAPACITY_TOKENS_PER_S: dict[tuple[str, int], float] = {
    ("chat", 1024): 5480.0,
    ("chat", 4096): 5600.0,
    ("flood", 1024): 5480.0,
    ("flood", 4096): 5600.0,
    ("long", 1024): 790.0,
    ("long", 4096): 870.0,
    ("bimodal", 1024): 3200.0,
    ("bimodal", 4096): 3400.0,
}
"""Found by `extproc simulate oracle` on tuning seeds, rounded: it says how much is offered. What efficiency is measured against
is found anew for each seed."""
_OF_OTHERS: dict[tuple[int, float], dict[tuple[str, int], float]] = {
    (SMALL_CACHE_TOKENS, 1.0): {("chat", 1024): 3860.0, ("chat", 4096): 3860.0},
    (EngineSpec().kv_tokens, SLOW): {("chat", 1024): 1800.0, ("chat", 4096): 1800.0},
}
"""Likewise, by KV tokens and speed, where they are not those of `EngineSpec`."""


def capacity(workload: Workload, spec: EngineSpec) -> float:
    """Output tokens per second of one engine at its best."""
    table = _OF_OTHERS.get((spec.kv_tokens, spec.speed), CAPACITY_TOKENS_PER_S)
    return table[workload.name, spec.chunk]


def same_requests(rho: float, other: Workload, chunk: int) -> float:
    """The load of as many requests of the other workload as make `rho` of `CHAT`; their answers are as long."""
    return rho * CAPACITY_TOKENS_PER_S[CHAT.name, chunk] / CAPACITY_TOKENS_PER_S[other.name, chunk]
