"""What else `extproc simulate` runs: the engine model's fit, the oracle, the baselines' tuning, what parts of `fused` are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table

from extproc.errors import ExtprocError
from extproc.sim.fit.fitting import fit as fitted
from extproc.sim.fit.report import report
from extproc.sim.world.ablation import PARTS, PLACES, run_without
from extproc.sim.world.capacity import capacity
from extproc.sim.world.cells import cells, run_each
from extproc.sim.world.knobs import KNOBS
from extproc.sim.world.oracle import best_of, questions_of
from extproc.sim.world.run import Cell
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.tuned import Tried
from extproc.sim.world.tuning import tune_all
from extproc.sim.world.worth import worths_table


class NoBaseline(ExtprocError):
    """A controller that is not tuned here; the message names those that are."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a study is about. `processes`: at once."""

    controllers: Sequence[str]
    chunks: Sequence[int]
    seeds: Sequence[int]
    processes: int


def fit(_scope: Scope, console: Console) -> None:
    """Fits the engine model to the measured engine."""
    report(fitted(), console)


def oracle(scope: Scope, console: Console) -> None:
    """C* of every workload and kind of engine for these chunks and seeds, and the limits behind it."""
    questions = questions_of(cells(list(SCENARIOS), seeds=scope.seeds, chunks=scope.chunks))
    table = Table(
        "workload",
        "KV cache",
        "speed",
        "chunk",
        "seed",
        "C* of an engine, tokens/s",
        "in the table of capacities",
        "KV tokens of P0, P1, P2 an engine",
        "prefill in line, s",
    )
    for question, best in zip(questions, run_each(best_of, questions, processes=scope.processes), strict=True):
        taken = capacity(question.workload, question.spec)
        limits = ", ".join(f"{limit:.0f}" for limit in best.limits.kv_tokens)
        place = (
            question.workload.name,
            str(question.spec.kv_tokens),
            f"{question.spec.speed:g}",
            str(question.spec.chunk),
            str(question.seed),
        )
        table.add_row(*place, f"{best.tokens_per_s:.0f}", f"{taken:.0f}", limits, f"{best.limits.line_s:g}")
    console.print(table)


def tune(scope: Scope, console: Console) -> None:
    """Tunes these baselines and records it."""
    strangers = [name for name in scope.controllers if name not in KNOBS]
    if strangers:
        raise NoBaseline(f"--controller: expected some of {', '.join(KNOBS)}, got {strangers[0]!r}")

    def told(name: str, tried: Tried) -> None:
        settings = ", ".join(f"{key} {value}" for key, value in tried.settings.items())
        console.print(f"{name:10} {tried.score:.4f} = {tried.efficiency:.4f} - {tried.p0_miss:.4f}  {settings}")

    tune_all(scope.controllers, processes=scope.processes, told=told)


def ablate(scope: Scope, console: Console) -> None:
    """Runs `fused` whole and without each of its parts."""
    wanted = [Cell(name, rho, chunk, seed) for name, rho in PLACES for chunk in scope.chunks for seed in scope.seeds]
    jobs = [(cell, name) for name in PARTS for cell in wanted]
    running = run_each(run_without, jobs, processes=scope.processes)
    progress = Console(stderr=True)
    results = list(track(running, "simulating", total=len(jobs), console=progress, transient=True))
    console.print(worths_table(results))


STUDIES: dict[str, Callable[[Scope, Console], None]] = {"fit": fit, "oracle": oracle, "tune": tune, "ablate": ablate}
