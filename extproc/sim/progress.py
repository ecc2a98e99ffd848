"""How a run goes, while it goes: a bar per priority on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from extproc.model import PRIORITIES, Priority
from extproc.sim.load import End, Observation
from extproc.sim.results import within_target
from extproc.sim.workload import Intended

_REFRESHES_PER_S = 4
_COUNTS = "within target {task.fields[good]}  rejected {task.fields[rejected]}  failed {task.fields[failed]}"


class RunProgress:
    """`with RunProgress(...) as progress`: `progress.ended(observation)` moves the bar of its priority."""

    def __init__(self, name: str, requests: Sequence[Intended], console: Console) -> None:
        self._console = console
        self._name = name
        self._sent = len(requests)
        self._bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(_COUNTS),
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            disable=not console.is_terminal,
        )
        self._tasks: dict[Priority, TaskID] = {
            priority: self._bars.add_task(
                f"{name} {priority}",
                total=sum(request.priority is priority for request in requests),
                good=0,
                late=0,
                rejected=0,
                failed=0,
            )
            for priority in PRIORITIES
        }

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {self._sent} requests ...", highlight=False)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def ended(self, seen: Observation) -> None:
        task = self._tasks[seen.priority]
        fields = self._bars.tasks[task].fields
        counted = "good" if within_target(seen) else "late" if seen.end is End.COMPLETED else str(seen.end)
        self._bars.update(task, advance=1, **{counted: fields[counted] + 1})
