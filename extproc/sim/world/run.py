"""One cell of the comparison: a scenario at one load, with one chunk size and seed, under one setup."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.virtual_time import run_virtual
from extproc.sim.world import measures
from extproc.sim.world.capacity import capacity
from extproc.sim.world.faults import schedule
from extproc.sim.world.measures import Second, Span
from extproc.sim.world.record import Diary
from extproc.sim.world.scenario import Phase, Scenario
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import Setup
from extproc.sim.world.traffic import Arrival, Workload, arrivals
from extproc.sim.world.world import World


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run. The same seed brings the same requests to every setup."""

    scenario: str
    rho: float
    chunk: int
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """The measures of one cell (see `measures`); None: does not apply. `capacity_tokens_per_s`: of the
    fleet, as far as it was there; `ideal_tokens_per_s`: that, or what was offered where that is less."""

    cell: Cell
    setup: str
    goodput_tokens_per_s: float
    capacity_tokens_per_s: float
    ideal_tokens_per_s: float
    p0_goodput_tokens_per_s: float
    p0_sent: int
    p0_miss: float | None
    p0_rejected: float | None
    wasted: float
    idle_refusing: float
    preemptions_per_1000: float
    jain: float | None
    reaction_s: float | None
    recovery_s: float | None
    amplification: float | None
    seconds: tuple[Second, ...] = ()

    @property
    def efficiency(self) -> float:
        return self.goodput_tokens_per_s / self.ideal_tokens_per_s


def run_scenario(cell: Cell, setup: Setup) -> Result:
    """Deterministic to the byte. Takes seconds; touches nothing outside."""
    diary = play(cell, setup)
    return measure(cell, setup, diary)


def play(cell: Cell, setup: Setup) -> Diary:
    """Runs it and returns all that happened."""
    return play_in(SCENARIOS[cell.scenario], cell, setup=setup)


def play_in(scenario: Scenario, cell: Cell, *, setup: Setup) -> Diary:
    """Likewise, in a scenario that is not in the table; `cell` says the rest."""
    spec = replace(scenario.spec(cell.chunk), scheduling=setup.scheduling)
    requests = traffic(scenario, scenario.phases(cell.rho, cell.chunk), spec, cell.seed)
    at_most_s = requests[-1].at_s + scenario.settle_s

    async def main() -> Diary:
        world = World(scenario, setup, spec=spec, seed=f"{cell.seed}/{cell.scenario}")
        schedule(world, scenario.faults, from_s=scenario.warm_up_s)
        return await world.run(requests, at_most_s=at_most_s)

    gc.freeze()
    gc.disable()  # a run makes no cycles worth collecting, and ends soon
    try:
        return run_virtual(main())
    finally:
        gc.enable()
        gc.unfreeze()


def traffic(scenario: Scenario, phases: Sequence[Phase], spec: EngineSpec, seed: int) -> list[Arrival]:
    """All requests of these phases, with the scenario's warm-up before and its cool-down after, to engines like `spec`."""
    requests: list[Arrival] = []
    from_s = 0.0
    before = replace(phases[0], seconds=scenario.warm_up_s)
    after = replace(phases[-1], seconds=scenario.cool_down_s)
    for index, phase in enumerate((before, *phases, after)):
        tokens = phase.rho * capacity(phase.workload, spec) * scenario.engines * phase.seconds
        requests += arrivals(
            phase.workload,
            output_tokens=tokens,
            from_s=from_s,
            seconds=phase.seconds,
            crowd=phase.crowd,
            pools=scenario.pools,
            seed=f"{seed}/{scenario.name}/{index}",
        )
        from_s += phase.seconds
    return requests


def spans_of(cell: Cell, capacity_of: Callable[[Workload, EngineSpec], float] = capacity) -> tuple[Span, ...]:
    """The measured phases. `capacity_of`: what one engine can do; how much is offered, the table of capacities says."""
    scenario = SCENARIOS[cell.scenario]
    spec, phases = scenario.spec(cell.chunk), scenario.phases(cell.rho, cell.chunk)
    ends = list(accumulate((phase.seconds for phase in phases), initial=scenario.warm_up_s))
    spans = []
    for phase, (from_s, until_s) in zip(phases, pairwise(ends), strict=True):
        possible = phase.power * capacity_of(phase.workload, spec)
        rho = phase.rho * capacity(phase.workload, spec) / possible
        tokens = possible * scenario.engines * phase.seconds
        spans.append(Span(from_s, until_s, rho, capacity_tokens=tokens, p0_rho=rho * phase.workload.mix[0]))
    return tuple(spans)


def measure(cell: Cell, setup: Setup, diary: Diary) -> Result:
    """The numbers of one run."""
    scenario, spans = SCENARIOS[cell.scenario], spans_of(cell)
    from_s, until_s = spans[0].from_s, spans[-1].until_s
    records = diary.records
    p0 = [record for record in records if record.arrival.priority == 0]
    sent = measures.p0_sent(p0, spans)
    admitted = sum(record.admitted_at is not None for record in records)
    senders = scenario.phases(cell.rho, cell.chunk)[0].workload.senders
    retries = scenario.persistence.obedient > 0
    return Result(
        cell=cell,
        setup=setup.name,
        goodput_tokens_per_s=measures.good_tokens(records, from_s, until_s) / (until_s - from_s),
        capacity_tokens_per_s=capacity_tokens_per_s(spans),
        ideal_tokens_per_s=ideal_tokens_per_s(spans, returning=retries),
        p0_goodput_tokens_per_s=measures.good_tokens(p0, from_s, until_s) / (until_s - from_s),
        p0_sent=len(sent),
        p0_miss=sum(not measures.in_target(one) for one in sent) / len(sent) if sent else None,
        p0_rejected=sum(bool(one.reason) for one in sent) / len(sent) if sent else None,
        wasted=measures.wasted(diary),
        idle_refusing=measures.idle_refusing(diary, spans),
        preemptions_per_1000=1000 * diary.preemptions / max(1, admitted),
        jain=measures.jain(diary, spans, senders),
        reaction_s=measures.reaction_s(records, spans),
        recovery_s=measures.recovery_s(records, spans),
        amplification=measures.amplification(records) if retries else None,
        seconds=measures.by_second(diary, from_s, until_s),
    )


def capacity_tokens_per_s(spans: Sequence[Span]) -> float:
    """Of the fleet, as far as it was there."""
    return sum(span.capacity_tokens for span in spans) / (spans[-1].until_s - spans[0].from_s)


def ideal_tokens_per_s(spans: Sequence[Span], *, returning: bool) -> float:
    """What the best could have delivered. Where the refused return, what one phase cannot take the next ones may."""
    seconds = spans[-1].until_s - spans[0].from_s
    if not returning:
        return sum(span.ideal_tokens for span in spans) / seconds
    offered = sum(span.rho * span.capacity_tokens for span in spans)
    return min(offered, sum(span.capacity_tokens for span in spans)) / seconds
