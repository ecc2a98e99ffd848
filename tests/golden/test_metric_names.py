"""Metric names, types and labels are an interface: dashboards and alerts rely on them. A change must be seen in review.

`EXTPROC_UPDATE_GOLDEN=1 pytest tests/golden/test_metric_names.py` writes the files anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin import names
from extproc.admin.gauges import SnapshotCollector
from extproc.admin.metrics import Metrics
from extproc.admin.source import SafeSource
from extproc.model import End, Outcome, Priority
from tests.support.snapshots import GivenSource

GOLDEN = Path(__file__).with_name("metric_names.txt")
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
UPDATE = os.environ.get("EXTPROC_UPDATE_GOLDEN") == "1"


def served() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Sample family -> (type, labels), as an independent parser reads what a busy service serves."""
    metrics = Metrics(["llama"])
    metrics.attach(SnapshotCollector(SafeSource(GivenSource())))
    metrics.decided(Outcome.ADMITTED, Priority.P0, "llama", waited_s=0.0)
    metrics.ended(End.COMPLETED, Priority.P0, "llama", held_s=1.0)
    metrics.state_called("ok")
    metrics.state_answered(0.001)
    metrics.scraped("engine-1:8000", "ok", took_s=0.001)
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        if family.name.startswith("extproc_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = (family.type, tuple(sorted(labels)))
    return found


def test_names_types_and_labels_are_the_recorded_ones() -> None:
    lines = [f"{name} {kind} {{{','.join(labels)}}}\n" for name, (kind, labels) in sorted(served().items())]
    if UPDATE:
        GOLDEN.write_text("".join(lines), encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8").splitlines(keepends=True) == lines


def test_what_is_served_is_what_is_declared() -> None:
    assert served() == {name.name: (name.kind.value, tuple(sorted(name.labels))) for name in names.ALL}


def test_names_follow_the_conventions() -> None:
    for name in names.ALL:
        assert re.fullmatch(r"extproc(_[a-z]+)+", name.name), name
        assert name.name.endswith("_total") == (name.kind is names.Kind.COUNTER), name
        assert not re.search(r"_(ms|milliseconds|percent|count|sum|bucket)(_|$)", name.name), name
        assert name.help.endswith("."), name


def test_the_operations_page_lists_every_metric() -> None:
    rows = ["| metric | type | labels | meaning |\n", "|---|---|---|---|\n"]
    for name in names.ALL:
        labels = ", ".join(f"`{label}`" for label in name.labels)
        rows.append(f"| `{name.name}` | {name.kind} | {labels} | {name.help} |\n")
    table = "".join(rows)
    begin, end = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
    text = OPERATIONS.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    written, tail = rest.split(end)
    if UPDATE:
        OPERATIONS.write_text(head + begin + table + end + tail, encoding="utf-8")
    else:
        assert written == table
