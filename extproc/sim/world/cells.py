"""Many cells at once: which they are, and running them in as many processes as wanted."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from extproc import log
from extproc.sim.world.run import Cell, Result, run_scenario
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.setup import Setup
from extproc.sim.world.setups import UnknownName

T = TypeVar("T")
R = TypeVar("R")

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
    return run_each(_run, jobs, processes=processes)


def run_each(work: Callable[[T], R], items: Sequence[T], *, processes: int) -> Iterator[R]:
    """`work` of each item in as many processes, in the order of the items, each as soon as it is there."""
    if processes <= 1:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent) as pool:
        yield from pool.map(work, items)


def _end_with_parent() -> None:
    """A run that is killed leaves no workers behind."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run(job: Job) -> Result:
    log.setup(level="error")  # that a replica is cut off is no news here
    return run_scenario(*job)
