"""Many cells at once: which they are, and running them in as many processes as wanted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from extproc import log
from extproc.sim.world.run import Cell, Result, run_scenario
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import Setup
from extproc.sim.world.setups import UnknownName

CHUNKS = (1024, 4096)
Job = tuple[Cell, Setup]


def scenarios_named(word: str) -> tuple[str, ...]:
    """`all`, a scenario's name, or what several names begin with. Raises `UnknownName`."""
    if word == "all":
        return tuple(name for name, scenario in SCENARIOS.items() if scenario.in_all)
    found = tuple(name for name in SCENARIOS if name == word) or tuple(n for n in SCENARIOS if n.startswith(f"{word}-"))
    if not found:
        raise UnknownName(f"expected all or one of {', '.join(SCENARIOS)}, got {word!r}")
    return found


def cells(
    names: Sequence[str], *, seeds: Sequence[int], rhos: Sequence[float] = (), chunks: Sequence[int]
) -> list[Cell]:
    """Every combination, in the order of reports. `rhos`: instead of the scenarios' own."""
    return [
        Cell(name, rho, chunk, seed)
        for name in names
        for rho in rhos or SCENARIOS[name].rhos
        for chunk in chunks
        for seed in seeds
    ]


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """In the order of `jobs`, each as soon as it is there."""
    if processes <= 1:
        yield from map(_run, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run, jobs)


def _run(job: Job) -> Result:
    log.setup(level="error")  # that a replica is cut off is no news here
    return run_scenario(*job)
