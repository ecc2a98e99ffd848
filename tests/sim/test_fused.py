"""What `fused` is for: at any load the engines do only useful work, and P0 does not miss while P0 alone fits."""

from __future__ import annotations

import pytest

from extproc.sim.world.run import Cell, run_scenario
from extproc.sim.world.setups import setup_named


@pytest.mark.parametrize(("rho", "chunk"), [(1.0, 1024), (2.0, 4096), (5.0, 1024)])
def test_engines_do_only_useful_work_and_p0_misses_nothing(rho: float, chunk: int) -> None:
    """Against the capacity of the table; what the curve says in full is in `extproc simulate sweep`."""
    result = run_scenario(Cell("sweep", rho, chunk, 6), setup_named("fused"))
    assert result.efficiency >= 0.95
    assert result.p0_miss is not None
    assert result.p0_miss <= 0.001
    assert result.wasted <= 0.01
    assert result.preemptions_per_1000 <= 1


def test_who_cannot_be_answered_in_time_is_refused_so_that_others_can() -> None:
    """At ten times the capacity P0 alone is half too much. Served in turn, all of it would be late."""
    result = run_scenario(Cell("sweep", 10.0, 1024, 6), setup_named("fused"))
    assert result.efficiency >= 0.93
    assert result.wasted <= 0.01


def test_prompts_eight_times_as_long_are_no_overload() -> None:
    result = run_scenario(Cell("2-shift-tokens", 2.0, 4096, 6), setup_named("fused"))
    assert result.efficiency >= 0.9
    assert result.wasted <= 0.03
    assert result.preemptions_per_1000 <= 1
