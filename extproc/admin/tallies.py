"""Counters and histograms that cost a request next to nothing: plain numbers, made into metrics when somebody scrapes.

prometheus_client's own take a lock for each number, three for a time and its count; ours are counted on one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from extproc.admin.names import Name

Labels = tuple[str, ...]


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Times:
    """One series of a histogram of seconds. `bounds`: the buckets' upper ends, ascending."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds


class Counts(Collector):
    """A counter with labels."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._series: dict[Labels, Count] = {}

    def labels(self, *labels: str) -> Count:
        """The series of these label values; made at 0 where it is new."""
        return self._series.setdefault(labels, Count())

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name.name, self._name.help, labels=self._name.labels)
        for labels, count in self._series.items():
            family.add_metric(labels, count.value)
        yield family


class Histograms(Collector):
    """A histogram with labels."""

    def __init__(self, name: Name, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._bounds = bounds
        self._ends = [*(str(bound) for bound in bounds), "+Inf"]
        self._series: dict[Labels, Times] = {}

    def labels(self, *labels: str) -> Times:
        """The series of these label values; made empty where it is new."""
        return self._series.setdefault(labels, Times(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name.name, self._name.help, labels=self._name.labels)
        for labels, times in self._series.items():
            buckets = list(zip(self._ends, accumulate(times.counts), strict=True))
            family.add_metric(labels, buckets, times.total_s)
        yield family
