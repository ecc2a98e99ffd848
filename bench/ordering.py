"""From rounds in two worlds to whether they put the controllers in the same order. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Round:
    """One controller's, in one world. Shares are of the requests sent (`p0_missed`: of P0); `late_p99_s`: of the load generator.

    `failed`: neither answered nor refused; in virtual time only who lost patience.
    """

    controller: str
    seed: int
    goodput_tokens_per_s: float
    p0_missed: float
    refused: float
    failed: float
    preemptions: int
    late_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """Two worlds' order by goodput. `tau`: Kendall's, of the medians. Pairs: those of which all rounds of one are above all of
    the other in both worlds, and of these the ones that the worlds order differently."""

    tau: float
    told_apart: int
    contradicted: tuple[tuple[str, str], ...]


def order(real: Sequence[Round], virtual: Sequence[Round]) -> Order:
    """Needs the same controllers in both, at least two."""
    worlds = [_by_controller(rounds) for rounds in (real, virtual)]
    pairs = list(combinations(worlds[0], 2))
    medians = [[_sign(statistics.median(of[a]) - statistics.median(of[b])) for a, b in pairs] for of in worlds]
    apart = [[_apart(of[a], of[b]) for a, b in pairs] for of in worlds]
    both = [(pair, here, there) for pair, here, there in zip(pairs, *apart, strict=True) if here and there]
    return Order(
        tau=sum(here * there for here, there in zip(*medians, strict=True)) / len(pairs),
        told_apart=len(both),
        contradicted=tuple(pair for pair, here, there in both if here != there),
    )


def _by_controller(rounds: Sequence[Round]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in rounds:
        found.setdefault(one.controller, []).append(one.goodput_tokens_per_s)
    return found


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _apart(one: Sequence[float], other: Sequence[float]) -> int:
    """1 or -1 where all of one are above or below all of the other, else 0."""
    return (min(one) > max(other)) - (max(one) < min(other))


def table(real: Sequence[Round], virtual: Sequence[Round]) -> str:
    """Per controller medians, and the goodput's range, real above virtual."""
    lines = [f"{'':22}{'goodput, tokens/s':>26}{'P0 missed':>11}{'refused':>9}{'failed':>8}{'preempted':>11}"]
    for name in dict.fromkeys(one.controller for one in real):
        for world, rounds in (("real", real), ("virtual", virtual)):
            mine = [one for one in rounds if one.controller == name]
            goodput = [one.goodput_tokens_per_s for one in mine]
            spread = f"{statistics.median(goodput):.0f} ({min(goodput):.0f} to {max(goodput):.0f})"
            columns = [(one.p0_missed, one.refused, one.failed) for one in mine]
            shares = [statistics.median(values) for values in zip(*columns, strict=True)]
            missed, refused, failed = (f"{share:.1%}" for share in shares)
            preempted = f"{statistics.median(one.preemptions for one in mine):.0f}"
            lines.append(f"{name:12}{world:10}{spread:>26}{missed:>11}{refused:>9}{failed:>8}{preempted:>11}")
    return "\n".join(lines)
