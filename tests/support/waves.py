"""Whether those who come back come in a wave."""

from __future__ import annotations

from collections.abc import Iterable


def peak_over_mean(moments: Iterable[float]) -> float:
    """The busiest second, wherever it begins, against the mean per second from the first moment to the last."""
    ordered = sorted(moments)
    peak, first = 0, 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] >= 1:
            first += 1
        peak = max(peak, last - first + 1)
    return peak / (len(ordered) / max(1.0, ordered[-1] - ordered[0]))


def peak_over_mean_of_seconds(moments: Iterable[float]) -> float:
    """The same for clients that come back only a whole number of seconds later, counted by the second they come in."""
    counts: dict[int, int] = {}
    for moment in moments:
        second = int(moment + 1e-9)
        counts[second] = counts.get(second, 0) + 1
    span = max(counts) - min(counts)  # the first and the last are one together
    return max(counts.values()) * max(1, span) / sum(counts.values())
