"""What the parts of a controller are worth, in words: the table of an ablation. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.table import Table

from extproc.sim.world.ablation import WHOLE
from extproc.sim.world.run import Result

Place = tuple[str, float]
"""Scenario and load."""
_NOTHING = 0.005
"""Points: what two digits show as none."""


@dataclass(frozen=True, slots=True)
class Score:
    """Per cent; means over places, seeds and chunks. `gaps`: by place, its difference to the whole, in points."""

    mean: float
    gaps: Mapping[Place, float]

    @property
    def gap(self) -> float:
        return fmean(self.gaps.values())


@dataclass(frozen=True, slots=True)
class Worth:
    """How it goes without a part."""

    part: str
    efficiency: Score
    p0_miss: Score
    preemptions: float
    """Per 1000 let in; mean."""


def worths(results: Sequence[Result]) -> list[Worth]:
    """One for each part, in the order of the results, which hold the whole as well. Where P0 does not fit, it misses nothing."""
    efficiencies = {name: _by_place(name, results, p0=False) for name in dict.fromkeys(r.setup for r in results)}
    misses = {name: _by_place(name, results, p0=True) for name in efficiencies}
    return [
        Worth(
            name,
            _score(efficiencies[name], efficiencies[WHOLE]),
            _score(misses[name], misses[WHOLE]),
            fmean(result.preemptions_per_1000 for result in results if result.setup == name),
        )
        for name in efficiencies
    ]


def _by_place(name: str, results: Sequence[Result], *, p0: bool) -> dict[Place, float]:
    found: dict[Place, list[float]] = {}
    for result in results:
        if result.setup == name:
            share = (result.p0_miss or 0.0) if p0 else result.efficiency
            found.setdefault((result.cell.scenario, result.cell.rho), []).append(100 * share)
    return {place: fmean(several) for place, several in found.items()}


def _score(own: Mapping[Place, float], whole: Mapping[Place, float]) -> Score:
    return Score(fmean(own.values()), {place: value - whole[place] for place, value in own.items()})


def worths_table(results: Sequence[Result]) -> Table:
    """A row for each part."""
    grid = Table(
        "fused without", "efficiency %", "+/-", "most lost in", "P0 missed %", "+/-", "most missed more in", "preempt."
    )
    for column in (1, 2, 4, 5, 7):
        grid.columns[column].justify = "right"
    for worth in worths(results):
        efficiency, p0_miss = worth.efficiency, worth.p0_miss
        if worth.part == WHOLE:
            means = f"{efficiency.mean:.2f}", "", "", f"{p0_miss.mean:.2f}", "", "", f"{worth.preemptions:.1f}"
            grid.add_row("nothing", *means, end_section=True)
            continue
        lost, missed = min(efficiency.gaps.items(), key=_gap), max(p0_miss.gaps.items(), key=_gap)
        grid.add_row(
            worth.part,
            *(f"{efficiency.mean:.2f}", f"{efficiency.gap:+.2f}", _named(*lost) if lost[1] < -_NOTHING else "-"),
            *(f"{p0_miss.mean:.2f}", f"{p0_miss.gap:+.2f}", _named(*missed) if missed[1] > _NOTHING else "-"),
            f"{worth.preemptions:.1f}",
        )
    return grid


def _gap(item: tuple[Place, float]) -> float:
    return item[1]


def _named(place: Place, gap: float) -> str:
    scenario, rho = place
    return f"{scenario} {rho:g}: {gap:+.2f}"
