"""Pictures of results: curves over offered load, or what happened in each second of one scenario. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from extproc.errors import ExtprocError
from extproc.sim.world.run import Result

Line = tuple[str, Sequence[float], Sequence[float]]
"""Label, x, y."""


class NoPlot(ExtprocError):
    """Nothing can be drawn: matplotlib is missing, or there is nothing that belongs into one picture."""


def ready() -> None:
    """Raises `NoPlot` where no picture could be drawn, before hours are spent on what it would show."""
    if find_spec("matplotlib") is None:
        raise NoPlot("--plot needs matplotlib: pip install 'extproc[simulate]'")


def draw(results: Sequence[Result], file: Path) -> None:
    """Curves where some scenario was run at several loads, else seconds. Raises `NoPlot`."""
    ready()
    from matplotlib.figure import Figure

    rows = _curves(results) or _seconds(results)
    figure = Figure(figsize=(6 * len(rows[0]), 3.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for axes, panel in zip(grid.flat, (panel for row in rows for panel in row), strict=True):
        title, (x_label, y_label), lines, x_scale = panel
        for label, x, y in lines:
            axes.plot(x, y, label=label, marker="." if x_scale == "log" else None)
        axes.set(title=title, xlabel=x_label, ylabel=y_label, xscale=x_scale)
        if x_scale == "log":
            ticks = sorted({at for _, x, _ in lines for at in x})
            axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
            axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(file)


Panel = tuple[str, tuple[str, str], list[Line], str]
"""Title, axis labels, lines, scale of x."""


def _curves(results: Sequence[Result]) -> list[list[Panel]]:
    """For the first scenario with several loads: goodput and P0 misses, a column for each chunk."""
    loads: dict[str, set[float]] = {}
    for result in results:
        loads.setdefault(result.cell.scenario, set()).add(result.cell.rho)
    name = next((name for name, rhos in loads.items() if len(rhos) > 1), None)
    if name is None:
        return []
    chosen = [result for result in results if result.cell.scenario == name]
    chunks = sorted({result.cell.chunk for result in chosen})
    measures: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
        ("goodput / capacity", lambda r: r.efficiency * min(1.0, r.cell.rho)),
        ("share of P0 missed", lambda r: r.p0_miss),
    )
    labels = "offered load / capacity"
    return [
        [(f"{name}, chunk {chunk}", (labels, y), _over_load(chosen, chunk, value), "log") for chunk in chunks]
        for y, value in measures
    ]


def _over_load(results: Sequence[Result], chunk: int, value: Callable[[Result], float | None]) -> list[Line]:
    points: dict[str, dict[float, list[float]]] = {}
    for result in results:
        if result.cell.chunk == chunk and (found := value(result)) is not None:
            points.setdefault(result.setup, {}).setdefault(result.cell.rho, []).append(found)
    return [(name, sorted(by_rho), [median(by_rho[rho]) for rho in sorted(by_rho)]) for name, by_rho in points.items()]


def _seconds(results: Sequence[Result]) -> list[list[Panel]]:
    """One scenario, the first chunk and seed of each controller: what was sent in each second and what became of it."""
    if len({result.cell.scenario for result in results}) != 1:
        raise NoPlot("--plot draws one scenario, or curves over several loads")
    first: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.setup, result)
    cell = results[0].cell
    panels: list[list[Panel]] = []
    for index, y in enumerate(("good tokens/s", "refused/s", "P0 missed/s")):
        lines: list[Line] = [
            (name, [float(second) for second, *_ in one.seconds], [float(row[index + 1]) for row in one.seconds])
            for name, one in first.items()
        ]
        panels.append([(f"{cell.scenario}, chunk {cell.chunk}, seed {cell.seed}", ("s", y), lines, "linear")])
    return panels
