"""A made-up picture of a busy service, for tests of what shows it."""

from __future__ import annotations

import math
from dataclasses import replace

from extproc.fleet import EngineSample
from extproc.model import Load, PoolState
from extproc.snapshots import (
    EngineSnapshot,
    PolicySnapshot,
    PoolSnapshot,
    QueueSnapshot,
    ServiceSnapshot,
    ShareSnapshot,
    WireSnapshot,
)

SAMPLE = EngineSample(
    engine="engine-1:8000",
    at=99.9,
    kv_usage=0.5,
    kv_capacity_tokens=4096,
    running=3,
    waiting=1,
    preemptions_per_s=0.0,
)
ENGINES = (
    EngineSnapshot("engine-1:8000", reporting=True, result="ok", age_s=0.1, sample=SAMPLE, filtered=True),
    EngineSnapshot("engine-2:8000", result="refused", last_error="connection refused"),
)
POOL = PoolSnapshot(
    name="llama",
    state=PoolState(
        limits=(Load(3000.0, math.inf), Load(2500.0, math.inf), Load(2000.0, math.inf)),
        reserved=(Load(100.0, 2.0), Load(), Load()),
        rejection=(0.0, 0.1, 0.75),
        saturation=0.5,
        reason="watermark",
        at=99.5,
        engines_reporting=1,
        engine_max_tokens=4096,
    ),
    queues=(
        QueueSnapshot("realtime-interactive", 200),
        QueueSnapshot(
            "agent-workflow", 500, waiting=2, waiting_load=Load(800.0, 2.0), oldest_wait_s=1.5, retry_after_s=7.5
        ),
        QueueSnapshot("batch-extraction", 1000),
    ),
    in_use=(Load(1000.0, 2.0), Load(500.0, 1.0), Load()),
    held=Load(1700.0, 4.0),
    ghosts=Load(200.0, 1.0),
    drain_per_s=Load(250.0, 0.5),
    engines=ENGINES,
    share=ShareSnapshot(replicas=2, leading=True, cut_off=False, differing=0),
)
SERVICE = ServiceSnapshot(
    at=100.0,
    started_at=40.0,
    policy=PolicySnapshot("policy.yaml", "3f2a9c1b", loaded_at=1_700_000_000.0),
    wire=WireSnapshot("127.0.0.1:50051", serving=True, streams=5),
    pools=(POOL,),
    loop_lag_s=0.002,
)


def service(**changes: object) -> ServiceSnapshot:
    return replace(SERVICE, **changes)  # type: ignore[arg-type]


class GivenSource:
    """A StateSource that shows what it was given, or raises it."""

    def __init__(self, state: ServiceSnapshot | Exception = SERVICE) -> None:
        self.state = state

    def snapshot(self) -> ServiceSnapshot:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state
