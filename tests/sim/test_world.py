"""The harness itself: the same seed is the same run, offered load is what it says, and a bad controller looks bad."""

from __future__ import annotations

import pytest

from extproc.sim.world.report import to_json
from extproc.sim.world.run import Cell, run_scenario
from extproc.sim.world.setups import setup_named


def test_the_same_seed_gives_the_same_numbers_to_the_byte() -> None:
    cell = Cell("sweep", 1.2, 1024, 3)
    first, second = (to_json([run_scenario(cell, setup_named("fixed"))]) for _ in range(2))
    assert first == second


def test_nothing_is_lost_at_half_load() -> None:
    result = run_scenario(Cell("sweep", 0.5, 1024, 3), setup_named("fixed"))
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
