"""What a scenario is: phases of load, a fleet, clients, and what goes wrong when. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.client import Persistence
from extproc.sim.world.traffic import Crowd, Workload

WARM_UP_S = 12.0
"""Traffic like that of the first phase, which is not measured: until the engines are full of answers of many ages."""
COOL_DOWN_S = 5.0
"""Traffic like that of the last phase, so that what was sent at the end of it has the same rivals."""


@dataclass(frozen=True, slots=True)
class Phase:
    """`rho`: offered load in units of the whole fleet's capacity for this workload. `power`: share of the fleet's capacity
    that there is, where engines are missing or slow."""

    seconds: float
    rho: float
    workload: Workload = Workload()
    crowd: Crowd = Crowd()
    power: float = 1.0


class FaultKind(StrEnum):
    """What goes wrong. `value` of a fault means what is said here."""

    ENGINES_GONE = "engines-gone"
    """The first `value` engines die, and are new and empty at the end."""
    ENGINE_SLOW = "engine-slow"
    """The first engine is `value` times slower."""
    METRICS_FROZEN = "metrics-frozen"
    """The pages of `value` of the engines (a share) show what they showed."""
    METRICS_SILENT = "metrics-silent"
    """The pages of `value` of the engines do not answer."""
    METRICS_DELAYED = "metrics-delayed"
    """All pages show what was `value` seconds ago."""
    METRICS_RARE = "metrics-rare"
    """Each page answers only once in `value` seconds."""
    STORE_LOST = "store-lost"
    """No replica reaches the store."""
    STORE_SLOW = "store-slow"
    """Every call to the store takes `value` seconds."""
    STORE_FAILOVER = "store-failover"
    """The store is lost; its copy that takes over lacks the last `value` seconds."""
    STORE_FLUSHED = "store-flushed"
    """The store loses all it holds, at once."""
    REPLICA_KILLED = "replica-killed"
    """The replica number `value` dies; who waited in it or came through it goes on without us, as Envoy fails open."""
    REPLICA_ADDED = "replica-added"
    """One more replica starts."""
    CLOCK_LEAPS = "clock-leaps"
    """The clock of the first replica leaps `value` seconds ahead."""


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` to `until_s`, seconds after the warm-up; what happens at once has no end."""

    kind: FaultKind
    at_s: float
    until_s: float = 0.0
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`phases`: by rho and the engines' chunk. `rhos`: those it is run at by default. `policy`: what the operator has to say
    differently, as the policy's YAML would; merged over the controller's. `kv_tokens`, `speed`: of each engine."""

    name: str
    title: str
    phases: Callable[[float, int], tuple[Phase, ...]]
    rhos: tuple[float, ...] = (2.0,)
    engines: int = 2
    kv_tokens: int = EngineSpec().kv_tokens
    speed: float = EngineSpec().speed
    pools: int = 1
    replicas: int = 1
    persistence: Persistence = Persistence()
    faults: tuple[Fault, ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict)
    clock_rates: tuple[float, ...] = ()
    """Of the replicas in order; those beyond go right."""
    warm_up_s: float = WARM_UP_S
    cool_down_s: float = COOL_DOWN_S
    settle_s: float = 150.0
    """After the last arrival, at most: what still runs ends, so that its work is told from wasted work, and who was told to
    come again comes."""
    in_all: bool = True
    """It is one of `all`."""

    def spec(self, chunk: int) -> EngineSpec:
        """Of each engine."""
        return EngineSpec(chunk=chunk, kv_tokens=self.kv_tokens, speed=self.speed)

    @property
    def workload(self) -> str:
        """The names of its phases' workloads, such as `chat` or `chat+long`: all that an operator could tune a limit for."""
        return "+".join(dict.fromkeys(phase.workload.name for phase in self.phases(self.rhos[0], 1024)))
