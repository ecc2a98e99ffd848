"""How baselines are tuned, and what the record of it says."""

from __future__ import annotations

import pytest

from extproc.sim.world.knobs import KNOBS
from extproc.sim.world.laws import Gate
from extproc.sim.world.scenario import Scenario
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import policy_of
from extproc.sim.world.setups import setup_named, untuned
from extproc.sim.world.tuned import ANY, Settings, load, with_settings
from extproc.sim.world.tuning import CELLS, WORKLOADS, descend

TUNING_SEEDS = range(1, 11)
TWO_KNOBS = ([{"a.x": x} for x in (0.0, 1.0, 2.0)], [{"a.y": y, "a.z": -y} for y in (0.0, 1.0, 2.0)])


def number(settings: Settings, name: str) -> float:
    value = settings[name]
    assert isinstance(value, int | float)
    return value


def test_it_finds_the_best_of_knobs_that_depend_on_each_other_a_little() -> None:
    def score(settings: Settings) -> float:
        x, y = number(settings, "a.x"), number(settings, "a.y")
        return -abs(x - 1) - abs(y - 2) - 0.1 * abs(x - y)

    assert descend(TWO_KNOBS, score) == {"a.x": 1.0, "a.y": 2.0, "a.z": -2.0}


def test_no_settings_are_tried_twice() -> None:
    asked: list[Settings] = []

    def score(settings: Settings) -> float:
        asked.append(settings)
        return number(settings, "a.x")

    descend(TWO_KNOBS, score)
    assert len(asked) == len({str(sorted(settings.items())) for settings in asked}) == 1 + 2 + 2


def test_of_equals_the_default_wins() -> None:
    assert descend(TWO_KNOBS, lambda _: 1.0) == {"a.x": 0.0, "a.y": 0.0, "a.z": 0.0}


@pytest.mark.parametrize("name", KNOBS)
def test_every_value_that_is_tried_makes_a_valid_policy(name: str) -> None:
    for choices in KNOBS[name]:
        for choice in choices:
            policy_of(with_settings(untuned(name), choice), SCENARIOS["sweep"])


def test_settings_reach_the_pool_or_the_law() -> None:
    fixed = with_settings(untuned("fixed"), {"fixed.theta": 0.5, "fixed.sequencesPerEngine": 100})
    policy = policy_of(fixed, SCENARIOS["sweep"]).pools[0].fixed
    assert (policy.theta, policy.sequences_per_engine) == (0.5, 100)
    assert with_settings(untuned("gate"), {"gate.waiting": 1}).law == Gate(waiting=1)


def test_tuning_uses_no_seed_that_is_reported() -> None:
    assert {cell.seed for cells in CELLS.values() for cell in cells} <= set(TUNING_SEEDS)


@pytest.mark.parametrize("name", KNOBS)
def test_the_record_holds_every_baseline_tuned_on_these_cells(name: str) -> None:
    tunings = load().controllers[name]
    assert tuple(tunings) == WORKLOADS.get(name, (ANY,))
    for workload, tuning in tunings.items():
        assert tuple(tuning.cells) == CELLS[workload]
        scores = [(tried.settings, tried.score) for tried in tuning.tried]
        assert (tuning.best, max(score for _, score in scores)) in scores


def test_what_is_tuned_by_workload_is_tuned_for_all_of_them() -> None:
    workloads = {scenario.workload for scenario in SCENARIOS.values()}
    assert all(set(tuned_for) == workloads for tuned_for in WORKLOADS.values())


@pytest.mark.parametrize("name", KNOBS)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_named_baseline_is_the_tuned_one(name: str, scenario: Scenario) -> None:
    tunings = load().controllers[name]
    tuning = tunings.get(scenario.workload, tunings.get(ANY))
    tuned = with_settings(untuned(name), tuning.best if tuning else {})
    assert policy_of(setup_named(name), scenario) == policy_of(tuned, scenario)
    assert setup_named(name).law == tuned.law
