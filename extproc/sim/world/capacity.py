"""What one engine can do: output tokens per second within the targets, by workload and chunk. The unit of rho."""

from __future__ import annotations

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.traffic import Workload

CAPACITY_TOKENS_PER_S: dict[tuple[str, int], float] = {
    ("chat", 1024): 5480.0,
    ("chat", 4096): 5600.0,
}


def capacity(workload: Workload, spec: EngineSpec) -> float:
    """Output tokens per second of one engine at its best, measured with constant limits (`extproc simulate oracle`)."""
    return CAPACITY_TOKENS_PER_S[workload.name, spec.chunk]
