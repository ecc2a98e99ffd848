"""The fit in words: model and measured engine beside each other, and what is left."""

from __future__ import annotations

import math
import statistics
from dataclasses import astuple, fields

from rich.console import Console
from rich.table import Table

from extproc.sim.fit.fitting import COLUMNS, loss, residual
from extproc.sim.fit.measured import MEASURED
from extproc.sim.fit.streams import Coefficients, run_streams

HEADINGS = ("TTFT p50 s", "p95 s", "gap p50 ms", "p95 ms", "longest s", "tokens/s", "preemptions")
SCALES = (1.0, 1.0, 1e3, 1e3, 1.0, 1.0, 1.0)


def report(coefficients: Coefficients, console: Console) -> None:
    """Two lines for each number of streams: model against measured, and by how much it is off."""
    for field, value in zip(fields(coefficients), coefficients.values(), strict=True):
        console.print(f"{field.name:18} {value:.3g}")
    table = Table("streams", *HEADINGS, title="model / measured (vLLM 0.32 on CPU)")
    rows: dict[int, tuple[float, ...]] = {}
    for streams, cell in MEASURED.items():
        model, readings = astuple(run_streams(coefficients, streams)), astuple(cell)
        rows[streams] = tuple(map(residual, COLUMNS, model, readings))
        shown = [f"{m * k:.3g} / {r * k:.3g}" for m, r, k in zip(model, readings, SCALES, strict=True)]
        off = [f"{100 * math.expm1(value):+.0f} %" for value in rows[streams]]
        table.add_row(str(streams), *shown)
        table.add_row("", *off, end_section=True, style="dim")
    console.print(table)
    each = [abs(value) for row in rows.values() for value in row]
    console.print(f"mean |ln(model / measured)| {loss(rows):.3f}, median {statistics.median(each):.3f}")
