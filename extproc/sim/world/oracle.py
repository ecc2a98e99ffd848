"""Who knows all lengths: the most that constant limits get out of an engine, on the very requests of a seed.

Found once for each workload, kind of engine and seed, at twice the load: what lies above saturation makes no difference to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.oracle import Best, Limits, best_constant_limits
from extproc.sim.world.clairvoyant import serve
from extproc.sim.world.measures import good_tokens
from extproc.sim.world.run import Cell, Result, capacity_tokens_per_s, ideal_tokens_per_s, spans_of, traffic
from extproc.sim.world.scenario import Phase
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.traffic import Workload

ENGINES, SECONDS, RHO = 2, 40.0, 2.0
_REQUESTS_OF = "sweep"
"""The scenario whose requests a seed brings."""


@dataclass(frozen=True, slots=True)
class Question:
    """What C* depends on."""

    workload: Workload
    spec: EngineSpec
    seed: int


Found = Mapping[Question, float]
"""C*: output tokens per second of one engine, within the targets."""


def questions_of(cells: Iterable[Cell]) -> list[Question]:
    """What has to be known to judge these cells: C* of every workload in their phases on their engines."""
    return list(
        dict.fromkeys(
            Question(phase.workload, SCENARIOS[cell.scenario].spec(cell.chunk), cell.seed)
            for cell in cells
            for phase in SCENARIOS[cell.scenario].phases(cell.rho, cell.chunk)
        )
    )


def best_of(question: Question) -> Best:
    """C* and the limits behind it, per engine."""
    spec, phase = question.spec, Phase(SECONDS, RHO, question.workload)
    scenario = replace(SCENARIOS[_REQUESTS_OF], engines=ENGINES)
    requests = traffic(scenario, (phase,), spec, question.seed)
    from_s = scenario.warm_up_s

    def goodput(limits: Limits) -> float:
        records = serve(requests, limits, spec, engines=ENGINES)
        return good_tokens(records, from_s, from_s + SECONDS) / SECONDS / ENGINES

    return best_constant_limits(goodput, float(spec.kv_tokens))


def judged(result: Result, found: Found) -> Result:
    """The result beside what the oracle could do, not beside the table of capacities."""
    cell = result.cell
    spans = spans_of(cell, lambda workload, spec: found[Question(workload, spec, cell.seed)])
    returning = SCENARIOS[cell.scenario].persistence.obedient > 0
    return replace(
        result,
        capacity_tokens_per_s=capacity_tokens_per_s(spans),
        ideal_tokens_per_s=ideal_tokens_per_s(spans, returning=returning),
    )
