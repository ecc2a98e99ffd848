"""`extproc simulate`: runs what was asked for, shows it, writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from extproc.errors import ExtprocError
from extproc.sim.world.cells import CHUNKS, cells, run_all, run_each, scenarios_named
from extproc.sim.world.oracle import best_of, judged, questions_of
from extproc.sim.world.plot import draw, ready
from extproc.sim.world.report import tables, to_json
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import policy_of
from extproc.sim.world.setups import setup_named
from extproc.sim.world.studies import STUDIES, Scope


class BadSeeds(ExtprocError):
    """`--seeds` is neither a number nor a range."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The flags of `extproc simulate`. `rhos`, `chunks` empty: all that the scenarios have. `oracle`: whether efficiency is
    measured against what was possible on the same requests, or against the table of capacities, which costs nothing."""

    scenario: str
    controllers: Sequence[str]
    seeds: str
    rhos: Sequence[float] = ()
    chunks: Sequence[int] = ()
    jobs: int = 1
    oracle: bool = True
    json: Path | None = None
    plot: Path | None = None


def seeds_of(text: str) -> list[int]:
    """`11-15` or `3`. Raises `BadSeeds`."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise BadSeeds(f"--seeds: expected a number or a range such as 11-15, got {text!r}")
    return list(range(int(first), int(last or first) + 1))


def simulate(options: SimulateOptions, console: Console) -> None:
    """Raises `ExtprocError` for names and seeds that are none, and where a picture cannot be drawn."""
    if options.scenario in STUDIES:
        scope = Scope(options.controllers, options.chunks or CHUNKS, seeds_of(options.seeds), options.jobs)
        STUDIES[options.scenario](scope, console)
        return
    wanted = cells(
        scenarios_named(options.scenario),
        seeds=seeds_of(options.seeds),
        rhos=options.rhos,
        chunks=options.chunks or CHUNKS,
    )
    setups = [setup_named(name) for name in options.controllers]
    for setup in setups:
        for name in {cell.scenario: None for cell in wanted}:
            policy_of(setup, SCENARIOS[name])  # what is wrong with it shows here, not in another process
    if options.plot is not None:
        ready()
    jobs = [(cell, setup) for cell in wanted for setup in setups]
    progress = Console(stderr=True)
    running = run_all(jobs, options.jobs)
    results = list(track(running, "simulating", total=len(jobs), console=progress, transient=True))
    if options.oracle:
        questions = questions_of(wanted)
        asking = run_each(best_of, questions, processes=options.jobs)
        best = list(track(asking, "asking the oracle", total=len(questions), console=progress, transient=True))
        found = dict(zip(questions, (one.tokens_per_s for one in best), strict=True))
        results = [judged(result, found) for result in results]
    for table in tables(results):
        console.print(table)
    if options.json is not None:
        options.json.write_bytes(to_json(results))
    if options.plot is not None:
        draw(results, options.plot)
