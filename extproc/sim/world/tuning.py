"""Tuning of the baselines, one knob after the other. Seeds 1 to 10 are for this; what is reported uses others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

from extproc.sim.world.cells import run_all
from extproc.sim.world.knobs import KNOBS, Knobs
from extproc.sim.world.run import Cell, Result
from extproc.sim.world.setup import Setup
from extproc.sim.world.setups import untuned
from extproc.sim.world.tuned import Settings, Tried, Tuned, Tuning, load, save, with_settings

CELLS: tuple[Cell, ...] = (
    Cell("sweep", 0.8, 4096, 1),
    Cell("bursty", 2.0, 1024, 2),
    Cell("2-shift-requests", 0.7, 4096, 3),
    Cell("11-bimodal", 2.0, 4096, 4),
)
"""A sample of loads, scenarios, chunks and seeds. A seed for each: what is right for one seed alone will not win."""
Score = Callable[[Settings], float]


def score_of(results: Sequence[Result]) -> float:
    """Mean efficiency less mean P0 misses, where they count: a hundredth of P0 missed is worth a hundredth of goodput."""
    return fmean(result.efficiency - (result.p0_miss or 0.0) for result in results)


def descend(knobs: Knobs, score: Score) -> Settings:
    """The best settings found: each knob's values in turn, those before it at their best, those after it at their default.

    Of equals the first wins; `score` is asked once for the same settings.
    """
    best: Settings = {name: value for choices in knobs for name, value in choices[0].items()}
    best_score = score(best)
    for choices in knobs:
        for candidate in [{**best, **choice} for choice in choices[1:]]:
            if (found := score(candidate)) > best_score:
                best, best_score = candidate, found
    return best


def tune(name: str, *, processes: int, told: Callable[[Tried], None]) -> Tuning:
    """Runs a baseline on all cells for all settings that the search wants. `told`: each as it is there."""
    base, tried = untuned(name), list[Tried]()

    def score(settings: Settings) -> float:
        one = _tried(settings, list(run_all(list(_jobs(base, settings)), processes)))
        tried.append(one)
        told(one)
        return one.score

    return Tuning(best=dict(descend(KNOBS[name], score)), tried=tried)


def _jobs(base: Setup, settings: Settings) -> Iterator[tuple[Cell, Setup]]:
    setup = with_settings(base, settings)
    return ((cell, setup) for cell in CELLS)


def _tried(settings: Settings, results: Sequence[Result]) -> Tried:
    missed = [result.p0_miss for result in results if result.p0_miss is not None]
    return Tried(
        settings=dict(settings),
        score=round(score_of(results), 5),
        efficiency=round(fmean(result.efficiency for result in results), 5),
        p0_miss=round(fmean(missed), 5),
    )


def tune_all(names: Sequence[str], *, processes: int, told: Callable[[str, Tried], None]) -> None:
    """Each baseline, into the record as soon as it is done; what the record says of others stays."""
    for name in names:
        tuning = tune(name, processes=processes, told=partial(told, name))
        save(Tuned(list(CELLS), {**load().controllers, name: tuning}))
