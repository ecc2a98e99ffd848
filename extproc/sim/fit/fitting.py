"""The engine model's coefficients, fitted to what was measured: the mean of `|ln(model / measured)|` over all cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, fields

from extproc.sim.fit.measured import MEASURED, Cell
from extproc.sim.fit.simplex import least
from extproc.sim.fit.streams import Coefficients, run_streams

COLUMNS = tuple(field.name for field in fields(Cell))
PREEMPTIONS_ADDED = 10.0
"""So that 0 has a logarithm, and 12 against 16 weighs as little as it means."""
STARTS = (
    Coefficients(10e-3, 300e-6, 1.2e-3, 1e-6, 20e-3, 20.0),
    Coefficients(10e-3, 300e-6, 1.2e-3, 1e-6, 20e-3, 30.0),
)
"""Rough readings of the table: 14 ms a step and 25 ms of TTFT for each further stream."""
FITTED = Coefficients(15.2e-3, 540e-6, 649e-6, 1e-6, 13.2e-3, 30.3)
"""What `fit()` found, to three digits."""


def residual(column: str, model: float, reading: float) -> float:
    """`ln(model / reading)`; preemptions are counted from `PREEMPTIONS_ADDED`. Infinite where the model did nothing."""
    added = PREEMPTIONS_ADDED if column == "preemptions" else 0.0
    return math.log((model + added) / (reading + added)) if model + added else -math.inf


def residuals(coefficients: Coefficients) -> dict[int, tuple[float, ...]]:
    """By number of streams, in the order of `COLUMNS`."""
    return {
        streams: tuple(map(residual, COLUMNS, astuple(run_streams(coefficients, streams)), astuple(cell)))
        for streams, cell in MEASURED.items()
    }


def loss(cells: Mapping[int, tuple[float, ...]]) -> float:
    """Absolute values, not squares: single cells show the noise of a shared CPU, which no coefficient explains."""
    values = [abs(value) for row in cells.values() for value in row]
    return sum(values) / len(values)


def fit(rounds: int = 100) -> Coefficients:
    """The best of a wide search from each start, searched once more nearby. 100 rounds: half a minute.

    It moves the coefficients' logarithms, so that none can become negative and a step is a factor.
    """

    def of(point: list[float]) -> Coefficients:
        return Coefficients(*map(math.exp, point))

    def of_point(point: list[float]) -> float:
        return loss(residuals(of(point)))

    points = [[math.log(value) for value in start.values()] for start in STARTS]
    _, best = min(least(of_point, point, step=0.4, rounds=rounds) for point in points)
    return of(least(of_point, best, step=0.1, rounds=rounds)[1])
