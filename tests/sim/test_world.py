"""The harness itself: the same seed is the same run, nothing is lost unsaid, and a bad controller looks bad."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.model import Priority
from extproc.sim.world.cells import CHUNKS, cells, scenarios_named
from extproc.sim.world.faults import schedule
from extproc.sim.world.plot import NoPlot, draw
from extproc.sim.world.record import Fate
from extproc.sim.world.report import to_json
from extproc.sim.world.run import Cell, play, run_scenario, spans_of
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import Setup, policy_of
from extproc.sim.world.setups import UnknownName, setup_named, setups
from extproc.sim.world.world import World
from tests.support.virtual import virtual

HALF_LOAD = Cell("sweep", 0.5, 1024, 3)


@pytest.mark.parametrize("cell", [Cell("sweep", 1.2, 1024, 3), Cell("9-replicas", 0.5, 1024, 3)], ids=str)
def test_the_same_seed_gives_the_same_numbers_to_the_byte(cell: Cell) -> None:
    first, second = (to_json([run_scenario(cell, setup_named("fixed"))]) for _ in range(2))
    assert first == second


def test_nothing_is_lost_at_half_load() -> None:
    result = run_scenario(HALF_LOAD, setup_named("fixed"))
    assert result.efficiency == pytest.approx(1.0, abs=0.005)
    assert result.p0_miss == 0
    assert result.wasted < 0.01


def test_without_limits_overload_ruins_it_for_everybody() -> None:
    """The control: a harness in which nothing fails tells nobody anything."""
    result = run_scenario(Cell("sweep", 2.0, 1024, 3), setup_named("none"))
    assert result.p0_miss is not None
    assert result.p0_miss > 0.9
    assert result.efficiency < 0.5
    assert result.wasted > 0.4


def test_what_runs_on_dying_engines_fails_and_the_others_go_on() -> None:
    diary = play(Cell("5-engines-lost", 0.3, 1024, 3), setup_named("fixed"))
    fates = {fate: sum(record.fate is fate for record in diary.records) for fate in Fate}
    assert fates[Fate.PENDING] == fates[Fate.REFUSED] == fates[Fate.LEFT] == 0
    assert 0 < fates[Fate.FAILED] < 0.1 * fates[Fate.ANSWERED]


def test_a_killed_replica_takes_nobody_with_it() -> None:
    diary = play(Cell("9-replicas", 0.5, 1024, 3), setup_named("fixed"))
    important = [record for record in diary.records if record.arrival.priority is not Priority.P2]
    assert {record.fate for record in important} == {Fate.ANSWERED}


@virtual
async def test_pages_are_as_old_as_their_scenario_says() -> None:
    """Where one delay ends the next begins: the end must not undo that."""
    scenario = SCENARIOS["6-delayed"]
    world = World(scenario, setup_named("none"), spec=scenario.spec(1024), seed="any")
    schedule(world, scenario.faults, from_s=0.0)
    ages = []
    for at_s in (1.0, 5.0, 12.0, 20.0, 27.0):
        await asyncio.sleep(at_s - world.loop.time())
        ages.append({machine.metrics.delay_s for machine in world.machines.values()})
    assert ages == [{0.0}, {0.5}, {2.0}, {5.0}, {0.0}]


def test_who_goes_past_the_service_waits_for_nobody_and_is_never_refused() -> None:
    records = play(Cell("bypass", 2.0, 1024, 3), setup_named("fused")).records
    past = [record for record in records if record.arrival.bypasses]
    assert len(past) == pytest.approx(len(records) / 4, rel=0.1)
    assert all(record.admitted_at == record.sent_at for record in past)
    assert any(record.reason for record in records if not record.arrival.bypasses)


def test_each_of_several_pools_serves_its_own_model() -> None:
    result = run_scenario(Cell("pools", 0.5, 1024, 3), setup_named("fixed"))
    assert result.efficiency == pytest.approx(1.0, abs=0.01)


def test_the_table_has_all_twelve() -> None:
    numbers = {name.split("-")[0] for name, one in SCENARIOS.items() if one.in_all}
    assert numbers == {"sweep", "bursty", *(str(number) for number in range(1, 13))}
    assert scenarios_named("6") == tuple(name for name in SCENARIOS if name.startswith("6-"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_policy_and_a_capacity(name: str) -> None:
    for setup in setups().values():
        assert policy_of(setup, SCENARIOS[name]).pools
    for cell in cells([name], seeds=[1], chunks=CHUNKS):
        assert all(span.capacity_tokens > 0 for span in spans_of(cell))


def test_a_setup_is_checked_like_any_policy() -> None:
    with pytest.raises(ConfigError, match="controllers"):
        policy_of(Setup("wrong", pool={"controllers": ["magic"]}), SCENARIOS["sweep"])


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="sweep"):
        scenarios_named("weep")
    with pytest.raises(UnknownName, match="gate"):
        setup_named("magic")


def test_pictures_are_of_one_scenario_or_of_a_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run_scenario(HALF_LOAD, setup_named("fixed"))
    file = tmp_path / "one.png"
    draw([result], file)
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NoPlot):
        draw([result, run_scenario(Cell("pools", 0.1, 1024, 3), setup_named("fixed"))], file)
