"""What efficiency is measured against: what was offered, or what was possible where that is less, phase by phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.capacity import SMALL_CACHE_TOKENS, capacity
from extproc.sim.world.oracle import Question, judged, questions_of
from extproc.sim.world.run import Cell, Result
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.traffic import Workload

SPEC = EngineSpec(chunk=1024)
UNIT = capacity(Workload(), SPEC)
ENGINES = SCENARIOS["sweep"].engines
RESULT = Result(
    cell=Cell("sweep", 2.0, 1024, 7),
    setup="fixed",
    goodput_tokens_per_s=UNIT * ENGINES,
    capacity_tokens_per_s=1.0,
    ideal_tokens_per_s=1.0,
    p0_goodput_tokens_per_s=0.0,
    p0_sent=0,
    p0_miss=None,
    p0_rejected=None,
    wasted=0.0,
    idle_refusing=0.0,
    preemptions_per_1000=0.0,
    jain=None,
    reaction_s=None,
    recovery_s=None,
    amplification=None,
)


@pytest.mark.parametrize(
    ("rho", "found", "ideal"),
    [(0.5, 1.25, 0.5), (1.0, 1.25, 1.0), (2.0, 1.25, 1.25), (1.0, 0.8, 0.8), (10.0, 0.8, 0.8)],
)
def test_nobody_can_do_more_than_was_offered_or_than_the_oracle(rho: float, found: float, ideal: float) -> None:
    result = replace(RESULT, cell=replace(RESULT.cell, rho=rho))
    best = {Question(Workload(), SPEC, 7): found * UNIT}
    assert judged(result, best).efficiency == pytest.approx(1 / ideal)
    assert judged(result, best).capacity_tokens_per_s == pytest.approx(found * UNIT * ENGINES)


def test_the_oracle_is_asked_once_for_each_workload_chunk_and_seed() -> None:
    cells = [Cell("sweep", rho, chunk, seed) for rho in (0.5, 2.0) for chunk in (1024, 4096) for seed in (1, 2)]
    specs = (SPEC, replace(SPEC, chunk=4096))
    assert questions_of(cells) == [Question(Workload(), spec, seed) for spec in specs for seed in (1, 2)]


def test_the_oracle_is_asked_about_engines_as_the_scenario_has_them() -> None:
    cells = [Cell(scenario, 2.0, 1024, 1) for scenario in ("sweep", "small-cache")]
    specs = (SPEC, replace(SPEC, kv_tokens=SMALL_CACHE_TOKENS))
    assert questions_of(cells) == [Question(Workload(), spec, 1) for spec in specs]
