"""What a scenario is: phases of load, a fleet, clients, and what goes wrong when. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.sim.world.client import Persistence
from extproc.sim.world.traffic import Crowd, Workload

WARM_UP_S = 20.0
"""Traffic like that of the first phase, which is not measured: until the engines hold answers of every age."""
COOL_DOWN_S = 10.0
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


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` to `until_s`, seconds after the warm-up."""

    kind: FaultKind
    at_s: float
    until_s: float
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`phases`: by rho. `rhos`: those it is run at by default. `policy`: what the operator has to say differently, as the
    policy's YAML would; merged over the controller's."""

    name: str
    title: str
    phases: Callable[[float], tuple[Phase, ...]]
    rhos: tuple[float, ...] = (2.0,)
    engines: int = 2
    pools: int = 1
    replicas: int = 1
    persistence: Persistence = Persistence()
    faults: tuple[Fault, ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict)
