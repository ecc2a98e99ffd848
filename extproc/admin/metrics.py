"""Counts and times as they happen: the Observer port on prometheus_client, in a registry of our own.

The names are in `names.py`. The hot path is one dict look-up and one increment of a tally; series are made once, at the
start where the policy tells them.
"""

from __future__ import annotations

from collections.abc import Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from extproc.admin import names
from extproc.admin.labels import NONE, OTHER, Values
from extproc.admin.tallies import Count, Counts, Histograms, Times
from extproc.model import PRIORITIES, End, Outcome, Priority
from extproc.ports import WireEvent

# A `_created` series beside each counter and histogram tells nobody anything and a third more series cost real memory.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 15.0, 30.0, 60.0)
HOLD_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
STATE_BUCKETS_S = (0.0001, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.1, 0.25, 1.0)
SCRAPE_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

MOST_ENGINES = 256
"""Distinct engine addresses that get a label of their own in a process's life; discovered ones beyond are `other`."""
MOST_RESULTS = 16

_VERDICTS = {Outcome.ADMITTED: "admitted", Outcome.CLIENT_GONE: "gone"}


def _counter(name: names.Name, registry: CollectorRegistry) -> Counter:
    return Counter(name.name, name.help, name.labels, registry=registry)


def _histogram(name: names.Name, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(name.name, name.help, name.labels, buckets=buckets, registry=registry)


class Metrics:
    """Implements `ports.Observer`. Never raises on any label value."""

    def __init__(self, pools: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counts(names.REQUESTS)
        self._retries = Counts(names.RETRIES)
        self._ended = Counts(names.ENDED)
        self._wire = _counter(names.WIRE_EVENTS, self.registry)
        self._scrapes = _counter(names.SCRAPES, self.registry)
        self._waits = Histograms(names.QUEUE_WAIT, WAIT_BUCKETS_S)
        self._holds = Histograms(names.HOLD, HOLD_BUCKETS_S)
        for tally in (self._requests, self._retries, self._ended, self._waits, self._holds):
            self.registry.register(tally)
        self._state_calls = _counter(names.STATE_CALLS, self.registry)
        self._state_times = _histogram(names.STATE_ASK, STATE_BUCKETS_S, self.registry)
        self._scrape_times = _histogram(names.SCRAPE, SCRAPE_BUCKETS_S, self.registry)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._pools = Values()
        self._engines = Values(room=MOST_ENGINES)
        self._results = Values(room=MOST_RESULTS)
        self._kinds = Values(room=MOST_RESULTS)
        self._decided: dict[tuple[Outcome, Priority | None, str], tuple[Count, Times | None]] = {}
        self._again: dict[tuple[Priority, str], Count] = {}
        self._ends: dict[tuple[End, Priority, str], tuple[Count, Times]] = {}
        self._events = {event: self._wire.labels(event.value) for event in WireEvent}
        self._counts: dict[tuple[str, str], Counter] = {}
        self.declare_pools(pools)

    def declare_pools(self, pools: Iterable[str]) -> None:
        """The pools of a policy, at the start and after each reload.

        Their series begin at 0, so that `rate()` sees the first event.
        """
        for pool in pools:
            self._pools.declare((pool,))
            for priority in PRIORITIES:
                self._retry(priority, pool)
                for outcome in Outcome:
                    self._decision(outcome, priority, pool)
                for end in End:
                    self._end(end, priority, pool)

    def attach(self, collector: Collector) -> None:
        """Adds gauges that are read when somebody scrapes."""
        self.registry.register(collector)

    def detach(self, collector: Collector) -> None:
        self.registry.unregister(collector)

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None:
        count, times = self._decided.get((outcome, priority, pool)) or self._decision(outcome, priority, pool)
        count.value += 1
        if times is not None:
            times.add(waited_s)

    def retried(self, priority: Priority, pool: str) -> None:
        (self._again.get((priority, pool)) or self._retry(priority, pool)).value += 1

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None:
        count, times = self._ends.get((end, priority, pool)) or self._end(end, priority, pool)
        count.value += 1
        times.add(held_s)

    def wire(self, event: WireEvent) -> None:
        self._events[event].inc()

    def scraped(self, engine: str, result: str, *, took_s: float) -> None:
        key = (self._engines.of(engine), self._results.of(result))
        counter = self._counts.get(key)
        if counter is None:
            counter = self._counts[key] = self._scrapes.labels(*key)
        counter.inc()
        self._scrape_times.observe(took_s)

    def state_called(self, result: str) -> None:
        self._state_calls.labels(self._kinds.of(result)).inc()

    def state_answered(self, took_s: float) -> None:
        self._state_times.observe(took_s)

    def requests(self) -> dict[str, dict[str, dict[str, int]]]:
        """Requests decided so far: pool -> priority -> outcome -> count, zeros left out. Never for a decision."""
        totals: dict[str, dict[str, dict[str, int]]] = {}
        for family in self._requests.collect():
            for sample in family.samples:
                if sample.value:
                    labels = sample.labels
                    outcomes = totals.setdefault(labels["pool"], {}).setdefault(labels["priority"], {})
                    outcomes[labels["outcome"]] = int(sample.value)
        return totals

    def retries(self) -> dict[str, dict[str, int]]:
        """Retries that arrived so far: pool -> priority -> count. Never for a decision."""
        totals: dict[str, dict[str, int]] = {}
        for family in self._retries.collect():
            for sample in family.samples:
                totals.setdefault(sample.labels["pool"], {})[sample.labels["priority"]] = int(sample.value)
        return totals

    def _decision(self, outcome: Outcome, priority: Priority | None, pool: str) -> tuple[Count, Times | None]:
        name, label = self._pools.of(pool), NONE if priority is None else str(priority)
        count = self._requests.labels(name, label, outcome.value)
        # What passed untouched never stood before a queue: it would only press the quantiles down.
        waited = outcome is not Outcome.PASSED
        times = self._waits.labels(name, label, _VERDICTS.get(outcome, "refused")) if waited else None
        if name != OTHER:
            self._decided[outcome, priority, pool] = count, times
        return count, times

    def _retry(self, priority: Priority, pool: str) -> Count:
        name = self._pools.of(pool)
        count = self._retries.labels(name, str(priority))
        if name != OTHER:
            self._again[priority, pool] = count
        return count

    def _end(self, end: End, priority: Priority, pool: str) -> tuple[Count, Times]:
        name = self._pools.of(pool)
        made = self._ended.labels(name, str(priority), end.value), self._holds.labels(name, str(priority))
        if name != OTHER:
            self._ends[end, priority, pool] = made
        return made
