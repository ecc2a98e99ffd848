"""Who knows all lengths: the most that constant limits get out of an engine, on the very requests of a seed.

Found once for each workload, kind of engine and seed, at twice the load: what lies above saturation makes no difference to it.
Queues are those of somebody who knows the targets, too: nobody is sent to the engines who has waited too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.oracle import Best, Limits, best_constant_limits
from extproc.sim.world.laws import Constant
from extproc.sim.world.measures import good_tokens
from extproc.sim.world.run import Cell, Result, capacity_tokens_per_s, ideal_tokens_per_s, play_in, spans_of
from extproc.sim.world.scenario import Phase
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import Setup
from extproc.sim.world.traffic import Workload

ENGINES, SECONDS, RHO = 2, 40.0, 2.0
_REQUESTS_OF = "sweep"
"""The scenario whose requests a seed brings."""
QUEUES = {
    "queues": [
        {
            "priority": priority,
            "name": f"band-{priority}",
            "maxQueueSize": 5000,
            "timeout": timeout,
            "dropPolicy": "tail",
        }
        for priority, timeout in enumerate(("0.8s", "2.5s", "9s"))
    ]
}


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
    """C* and the limits behind it, per engine. Takes nine runs."""

    def goodput(limits: Limits) -> float:
        return _goodput(question, _setup(limits, question.spec))

    return best_constant_limits(goodput, float(question.spec.kv_tokens))


def _setup(limits: Limits, spec: EngineSpec) -> Setup:
    """Slots as the engines have them, less for lower priorities in the same proportion."""
    p0, p1, p2 = limits
    slots = spec.max_num_seqs
    law = Constant((p0, p1, p2), (slots, slots * p1 / p0, slots * p2 / p0))
    return Setup("oracle", policy=QUEUES, law=law, knows_lengths=True)


def _goodput(question: Question, setup: Setup) -> float:
    scenario = replace(
        SCENARIOS[_REQUESTS_OF],
        phases=lambda rho, _: (Phase(SECONDS, rho, question.workload),),
        engines=ENGINES,
        kv_tokens=question.spec.kv_tokens,
        speed=question.spec.speed,
    )
    diary = play_in(scenario, Cell(scenario.name, RHO, question.spec.chunk, question.seed), setup=setup)
    from_s = scenario.warm_up_s
    return good_tokens(diary.records, from_s, from_s + SECONDS) / SECONDS / ENGINES


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
