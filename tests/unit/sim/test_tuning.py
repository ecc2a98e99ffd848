"""How baselines are tuned, and what the record of it says."""

from __future__ import annotations

import pytest

from extproc.sim.world.knobs import KNOBS
from extproc.sim.world.laws import Gate
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import policy_of
from extproc.sim.world.setups import setup_named, untuned
from extproc.sim.world.tuned import Settings, load, with_settings
from extproc.sim.world.tuning import CELLS, descend

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
    assert {cell.seed for cell in CELLS} <= set(TUNING_SEEDS)


def test_the_record_holds_every_baseline_tuned_on_these_cells() -> None:
    record = load()
    assert tuple(record.cells) == CELLS
    assert record.controllers.keys() == KNOBS.keys()
    for name, tuning in record.controllers.items():
        scores = [(tried.settings, tried.score) for tried in tuning.tried]
        assert (tuning.best, max(score for _, score in scores)) in scores
        assert setup_named(name) == with_settings(untuned(name), tuning.best)
        policy_of(setup_named(name), SCENARIOS["sweep"])
