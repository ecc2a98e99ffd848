"""`fused` without a part is `fused` but for that part, and the rest of the service is the product's own."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from extproc import pace
from extproc.config import ControllerName
from extproc.controllers.compose import CONTROLLERS
from extproc.controllers.fused import FusedMemory
from extproc.sim.world.ablation import PARTS, PLACES, WHOLE, off, run_without
from extproc.sim.world.run import Cell, run_scenario
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setups import setup_named

CELL = Cell("2-shift-requests", 0.7, 1024, 1)
"""Long prompts at less than the capacity: a second's run."""


def test_without_nothing_it_is_fused_to_the_byte() -> None:
    assert replace(run_without((CELL, WHOLE)), setup="fused") == run_scenario(CELL, setup_named("fused"))


def test_without_a_pace_p0_waits_behind_long_prompts() -> None:
    whole, without = (run_without((CELL, name)) for name in (WHOLE, "pace"))
    assert whole.p0_miss is not None
    assert without.p0_miss is not None
    assert without.p0_miss > whole.p0_miss + 0.1


def test_long_prompts_that_need_no_room_for_the_whole_of_them_are_let_in_at_other_times() -> None:
    whole, without = (run_without((CELL, name)) for name in (WHOLE, "room for whole prompts"))
    assert without.seconds != whole.seconds


def test_every_part_of_the_memory_can_be_off() -> None:
    """But the pace, which is a part of the state, and what others are made of."""
    used = FusedMemory(0.5, 1000.0, 0.5, engines=2.0, busy=0.5, recent=9.0, foreign=0.5, strangers=9.0, at=1.0)
    left = [part.memory(used) for part in PARTS.values()]
    changed = {f.name for f in fields(FusedMemory) for one in left if getattr(one, f.name) != getattr(used, f.name)}
    assert changed == {f.name for f in fields(FusedMemory)} - {"pace", "recent", "at"}


def test_afterwards_the_product_is_whole_again() -> None:
    before = dict(CONTROLLERS), pace.room
    with off(PARTS["room for whole prompts"]):
        assert CONTROLLERS[ControllerName.FUSED] is not before[0][ControllerName.FUSED]
        assert pace.room is not before[1]
    assert (dict(CONTROLLERS), pace.room) == before


@pytest.mark.parametrize(("scenario", "rho"), PLACES)
def test_every_place_is_a_scenario_at_a_load_of_its_own(scenario: str, rho: float) -> None:
    assert rho in SCENARIOS[scenario].rhos
