"""Who bears a rejection rate: from one share of all traffic to a share per priority."""

from __future__ import annotations

from extproc.config import ShedOrder
from extproc.model import PRIORITIES, Demand

PerPriority = tuple[float, float, float]


def spread(rate: float, order: ShedOrder, demand: Demand) -> PerPriority:
    """Rejection per priority (0..1, not falling with the index) that refuses `rate` (0..1) of what is offered.

    `uniform`: `rate` for everybody. `lowest-first`: the same requests per second, taken from P2, then P1, then P0.
    A priority that offers nothing while one above it is refused gets 1: it is the limit of offering very little. Where
    nothing is known of the traffic, everybody gets `rate`. A single offered priority gets exactly `rate`.
    """
    offered = [max(0.0, demand.offered_per_s[priority]) for priority in PRIORITIES]
    total = sum(offered)
    if order is ShedOrder.UNIFORM or total <= 0 or rate <= 0 or rate >= 1:
        everybody = min(1.0, max(0.0, rate))
        return everybody, everybody, everybody
    left = rate * total
    shares = [0.0, 0.0, 0.0]
    for priority in reversed(PRIORITIES):
        if left <= total * 1e-12:
            break
        share = 1.0 if left >= offered[priority] else left / offered[priority]
        if offered[priority] == total:
            share = rate  # exact: no rounding by way of requests per second
        shares[priority] = share
        left -= offered[priority] * share
    return shares[0], shares[1], shares[2]
