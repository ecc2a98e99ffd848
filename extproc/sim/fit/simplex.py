"""The search of Nelder and Mead (1965) for the least value of a function without derivatives. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Point = list[float]


def least(
    function: Callable[[Point], float], start: Sequence[float], *, step: float, rounds: int
) -> tuple[float, Point]:
    """The least value found and where. `step`: the first simplex's edge, in every direction."""
    corners = [list(start)]
    corners += [[value + step * (i == j) for j, value in enumerate(start)] for i in range(len(start))]
    simplex = sorted((function(corner), corner) for corner in corners)
    for _ in range(rounds):
        simplex = sorted(_moved(function, simplex))
    return simplex[0]


def _moved(function: Callable[[Point], float], simplex: list[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """The simplex without its worst corner: reflected, stretched, drawn in or shrunk."""
    *kept, (worst, corner) = simplex
    best, second_worst = kept[0], kept[-1][0]
    centre = [sum(values) / len(kept) for values in zip(*(point for _, point in kept), strict=True)]

    def tried(reach: float) -> tuple[float, Point]:
        point = [middle + reach * (middle - value) for middle, value in zip(centre, corner, strict=True)]
        return function(point), point

    reflected = tried(1.0)
    if reflected[0] < best[0]:
        return [*kept, min(reflected, tried(2.0))]
    if reflected[0] < second_worst:
        return [*kept, reflected]
    nearer = tried(0.5 if reflected[0] < worst else -0.5)
    if nearer[0] < min(reflected[0], worst):
        return [*kept, nearer]
    halfway = [[(a + b) / 2 for a, b in zip(best[1], point, strict=True)] for _, point in simplex[1:]]
    return [best, *((function(point), point) for point in halfway)]
