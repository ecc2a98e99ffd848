"""Our counters and histograms read like prometheus_client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from extproc.admin import names
from extproc.admin.tallies import Counts, Histograms

BOUNDS = (0.005, 0.5, 1.0, 60.0)
labels = st.tuples(st.sampled_from(["llama", 'odd "pool"']), st.sampled_from(["P0", "P1"]))


@given(st.lists(st.tuples(labels, st.sampled_from([0.0, 0.005, 0.3, 0.5, 1.0, 59.9, 60.0, 61.0])), max_size=30))
def test_they_are_exposed_as_the_library_exposes_its_own(seen: list[tuple[tuple[str, str], float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts, times = Counts(names.ENDED), Histograms(names.HOLD, BOUNDS)
    ours.register(counts)
    ours.register(times)
    counter = Counter(names.ENDED.name, names.ENDED.help, names.ENDED.labels, registry=theirs)
    histogram = Histogram(names.HOLD.name, names.HOLD.help, names.HOLD.labels, registry=theirs, buckets=BOUNDS)
    for each, took_s in seen:
        counts.labels(*each, "completed").value += 1
        counter.labels(*each, "completed").inc()
        times.labels(*each).add(took_s)
        histogram.labels(*each).observe(took_s)
    assert generate_latest(ours) == generate_latest(theirs)
    assert generate_openmetrics(ours) == generate_openmetrics(theirs)  # type: ignore[no-untyped-call]
