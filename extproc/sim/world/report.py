"""Results in words: the JSON, and the tables for people. Medians over seeds; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec
from rich.table import Table

from extproc.sim.world.run import Result

_MEASURES = (
    *("efficiency", "p0_miss", "p0_rejected", "wasted", "idle_refusing", "preemptions_per_1000"),
    *("jain", "reaction_s", "recovery_s", "amplification"),
)
_DIGITS = 5
Key = tuple[str, float, int, str]


def to_json(results: Sequence[Result]) -> bytes:
    """Rows of measures (null: does not apply), and the most that the fleet could do, where all of it was there all the time:
    efficiency = goodput / the lesser of that and of what was offered, phase by phase. Offered is `rho` x the table's capacity.
    """
    oracle = {
        (r.cell.scenario, r.cell.rho, r.cell.chunk, r.cell.seed): round(r.capacity_tokens_per_s, 1) for r in results
    }
    document = {
        "rows": [_row(result) for result in results],
        "oracle": [
            {"scenario": name, "rho": rho, "chunk": chunk, "seed": seed, "tokens_per_s": tokens}
            for (name, rho, chunk, seed), tokens in oracle.items()
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _row(result: Result) -> dict[str, object]:
    cell = result.cell
    row: dict[str, object] = {"scenario": cell.scenario, "rho": cell.rho, "chunk": cell.chunk}
    row |= {"controller": result.setup, "seed": cell.seed}
    row |= {name: _rounded(getattr(result, name)) for name in _MEASURES}
    row["goodput_tokens_per_s"] = round(result.goodput_tokens_per_s, 1)
    row["p0_efficiency"] = _rounded(result.p0_goodput_tokens_per_s / result.ideal_tokens_per_s)
    row["p0_sent"] = result.p0_sent
    return row


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def tables(results: Sequence[Result]) -> list[Table]:
    """One per scenario that was run at several loads, one for all others."""
    rhos = {name: sorted({r.cell.rho for r in results if r.cell.scenario == name}) for name in _names(results)}
    curves = [name for name, several in rhos.items() if len(several) > 1]
    grids = [_curve([r for r in results if r.cell.scenario == name], rhos[name]) for name in curves]
    rest = [result for result in results if result.cell.scenario not in curves]
    return grids + ([_list(rest)] if rest else [])


def _names(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.cell.scenario for result in results))


def _curve(results: Sequence[Result], rhos: Sequence[float]) -> Table:
    grid = _table(
        f"{results[0].cell.scenario}: over offered load", "controller", "chunk", "", *(f"{r:g}" for r in rhos)
    )
    grouped = _grouped(results)
    for name, chunk in dict.fromkeys((r.setup, r.cell.chunk) for r in results):
        for label, shown in _CURVES:
            cells = [grouped.get((results[0].cell.scenario, rho, chunk, name), []) for rho in rhos]
            grid.add_row(name, str(chunk), label, *(_spread(cell, shown) for cell in cells))
        grid.add_section()
    return grid


def _list(results: Sequence[Result]) -> Table:
    columns = ("scenario", "chunk", "controller", "efficiency %", "P0 missed %", "P0 refused %", "wasted %")
    grid = _table("scenarios", *columns, "idle, refusing %", "preempt.", "Jain", "reaction s", "recovery s", "amplif.")
    for (scenario, rho, chunk, name), same in _grouped(results).items():
        grid.add_row(f"{scenario} {rho:g}", str(chunk), name, *(_spread(same, shown) for shown in _COLUMNS))
    return grid


def _grouped(results: Sequence[Result]) -> dict[Key, list[Result]]:
    grouped: dict[Key, list[Result]] = {}
    for result in results:
        key = result.cell.scenario, result.cell.rho, result.cell.chunk, result.setup
        grouped.setdefault(key, []).append(result)
    return grouped


def _table(title: str, *columns: str) -> Table:
    grid = Table(*columns, title=title, title_justify="left")
    for column in grid.columns[3:]:
        column.justify = "right"
    return grid


Shown = tuple[Callable[[Result], float | None], float, int]
"""What is shown of a result: the value, its factor and its digits."""
_EFFICIENCY: Shown = (lambda r: r.efficiency, 100, 1)
_P0_MISS: Shown = (lambda r: r.p0_miss, 100, 2)
_CURVES = (("efficiency %", _EFFICIENCY), ("P0 missed %", _P0_MISS))
_COLUMNS: tuple[Shown, ...] = (
    _EFFICIENCY,
    _P0_MISS,
    (lambda r: r.p0_rejected, 100, 2),
    (lambda r: r.wasted, 100, 1),
    (lambda r: r.idle_refusing, 100, 1),
    (lambda r: r.preemptions_per_1000, 1, 1),
    (lambda r: r.jain, 1, 3),
    (lambda r: r.reaction_s, 1, 2),
    (lambda r: r.recovery_s, 1, 2),
    (lambda r: r.amplification, 1, 2),
)


def _spread(results: Sequence[Result], shown: Shown) -> str:
    """The median over seeds, and where they differ visibly, the least and the most."""
    value, factor, digits = shown
    values = [found * factor for result in results if (found := value(result)) is not None]
    if not values:
        return "-"
    low, middle, high = (f"{one:.{digits}f}" for one in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}..{high})"
