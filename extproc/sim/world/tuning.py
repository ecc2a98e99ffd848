"""Tuning of the baselines, one knob after the other. Seeds 1 to 10 are for this; what is reported uses others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from extproc.sim.world.cells import run_all
from extproc.sim.world.knobs import KNOBS, Knobs
from extproc.sim.world.run import Cell, Result
from extproc.sim.world.setups import untuned
from extproc.sim.world.tuned import ANY, Settings, Tried, Tuned, Tuning, load, save, with_settings

_CHAT = (Cell("sweep", 0.8, 4096, 1), Cell("bursty", 2.0, 1024, 2), Cell("sweep", 3.0, 4096, 5))
_SHIFT = (Cell("2-shift-requests", 0.7, 4096, 3), Cell("2-shift-tokens", 2.0, 1024, 6))
_BIMODAL = (Cell("11-bimodal", 2.0, 4096, 4), Cell("11-bimodal", 2.0, 1024, 7))
CELLS: Mapping[str, tuple[Cell, ...]] = {
    ANY: (*_CHAT, *_SHIFT, _BIMODAL[0]),
    "chat": _CHAT,
    "chat+long": _SHIFT,
    "bimodal": _BIMODAL,
    "flood": (Cell("10-tenant-flood", 2.0, 4096, 10),),
    "long": (Cell("long", 2.0, 1024, 8), Cell("long", 2.0, 4096, 9)),
}
"""A sample of loads, scenarios, chunks and seeds, each with another seed: what is right for one seed alone will not win."""
WORKLOADS: Mapping[str, tuple[str, ...]] = {"fixed": ("chat", "chat+long", "bimodal", "flood", "long")}
"""What adapts to nothing is tuned for each workload; the others, once."""
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


def tune(name: str, workload: str, *, processes: int, told: Callable[[Tried], None]) -> Tuning:
    """Runs a baseline for all settings that the search wants. `told`: each as it is there."""
    base, cells, tried = untuned(name), CELLS[workload], list[Tried]()

    def score(settings: Settings) -> float:
        setup = with_settings(base, settings)
        one = _tried(settings, list(run_all([(cell, setup) for cell in cells], processes)))
        tried.append(one)
        told(one)
        return one.score

    best = descend(KNOBS[name], score)
    return Tuning(cells=list(cells), best=dict(best), tried=tried)


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
        tunings = {
            workload: tune(name, workload, processes=processes, told=partial(told, name))
            for workload in WORKLOADS.get(name, (ANY,))
        }
        save(Tuned({**load().controllers, name: tunings}))
