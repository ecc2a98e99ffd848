"""What the parts of a controller are worth, as a table."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from extproc.sim.world.ablation import WHOLE
from extproc.sim.world.run import Cell, Result
from extproc.sim.world.worth import worths, worths_table
from tests.unit.sim.test_judged import RESULT


def result(part: str, scenario: str, efficiency: float, p0_miss: float | None) -> Result:
    return replace(
        RESULT,
        cell=Cell(scenario, 2.0, 1024, 1),
        setup=part,
        goodput_tokens_per_s=efficiency,
        ideal_tokens_per_s=1.0,
        p0_miss=p0_miss,
    )


RESULTS = [
    result(WHOLE, "calm", 1.0, 0.0),
    result(WHOLE, "storm", 0.8, 0.02),
    result("rudder", "calm", 0.99, None),
    result("rudder", "storm", 0.5, 0.1),
    result("flag", "calm", 1.0, 0.0),
    result("flag", "storm", 0.9, 0.01),
]


def test_a_part_is_worth_what_is_lost_without_it() -> None:
    whole, rudder, flag = worths(RESULTS)
    assert whole.efficiency.mean == pytest.approx(90)
    assert whole.efficiency.gap == whole.p0_miss.gap == 0
    assert rudder.efficiency.mean == pytest.approx(74.5)
    assert rudder.efficiency.gap == pytest.approx(-15.5)
    assert rudder.p0_miss.mean == pytest.approx(5)
    assert rudder.p0_miss.gap == pytest.approx(4)
    assert flag.efficiency.gap == pytest.approx(5)


def test_a_place_counts_once_however_many_seeds_it_has() -> None:
    again = replace(RESULTS[0], cell=replace(RESULTS[0].cell, seed=2), goodput_tokens_per_s=0.8)
    assert worths([*RESULTS, again])[0].efficiency.mean == pytest.approx((90 + 80) / 2)


def test_the_table_names_where_most_is_lost_and_where_nothing_is() -> None:
    text = StringIO()
    Console(file=text, width=150).print(worths_table(RESULTS))
    nothing, rudder, flag = (line for line in text.getvalue().splitlines() if line.startswith("│"))
    assert "90.00" in nothing
    assert "storm 2: -30.00" in rudder
    assert "storm 2: +8.00" in rudder
    assert [cell.strip() for cell in flag.split("│")][4:8:3] == ["-", "-"]
