"""Prometheus text and OpenMetrics, as engines and proxies really write them."""

from __future__ import annotations

import math
import time

import pytest

from extproc.engines.metrics_text import MetricsText
from extproc.errors import BadMetrics

TEXT = MetricsText(("x:a", "x:a_total", "x:b"))
OPEN = "application/OpenMetrics-Text; version=1.0.0; charset=utf-8"


def _values(text: str, name: str = "x:a", content_type: str = "text/plain") -> list[float]:
    return [series.value for series in TEXT.scan(text, content_type).series.get(name, ())]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x:a 1", 1.0),
        ("x:a 1.5e3", 1500.0),
        ("x:a{} 2", 2.0),
        ('x:a{l="v"} 3', 3.0),
        ('x:a{l="v",} 3', 3.0),
        ('x:a {l="v"}\t4', 4.0),
        ('x:a{l="v"} 5 1700000000000', 5.0),
        ('x:a{l="v"} 6 # {trace_id="abc"} 0.67 1700000000.1', 6.0),
        ('x:a{l="} # \\" {"} 7', 7.0),
        ("x:a 8\r", 8.0),
        ("x:a +Inf", math.inf),
        ("x:a -1", -1.0),
    ],
)
def test_one_line(line: str, value: float) -> None:
    assert _values(line) == [value]
    assert _values(f"# HELP x:a Something.\n# TYPE x:a gauge\n{line}\nx:b 9\n") == [value]


def test_values_that_are_no_number_are_present_but_missing() -> None:
    assert all(math.isnan(value) for value in _values('x:a NaN\nx:a{l="v"} bananas\n'))
    assert len(_values('x:a NaN\nx:a{l="v"} bananas\n')) == 2


def test_names_match_whole() -> None:
    assert _values("x:a_created 1\nx:ab 2\nxx:a 3\n# x:a 4\nx:a_total 5\n") == []
    assert _values("x:a_created 1\nx:a_total 5\n", "x:a_total") == [5.0]


def test_labels_are_unescaped() -> None:
    scan = TEXT.scan(r'x:a{path="C:\\dir\n\"q\"",other="a,b=c}"} 1')
    assert scan.series["x:a"][0].labels == {"path": 'C:\\dir\n"q"', "other": "a,b=c}"}


def test_openmetrics_needs_its_end() -> None:
    assert _values("x:a 1\n# EOF\n", content_type=OPEN) == [1.0]
    assert _values("x:a 1\r\n# EOF\r\n", content_type=OPEN) == [1.0]
    with pytest.raises(BadMetrics, match="EOF"):
        TEXT.scan("x:a 1\nx:b", OPEN)


def test_tells_whether_there_are_other_series() -> None:
    assert not TEXT.scan("# HELP x:a y\n\nx:a 1\nx:b{} 2\n# EOF\n").others
    assert not TEXT.scan("").others
    assert TEXT.scan("x:a 1\nx:a_created 2\n").others
    assert TEXT.scan("process_open_fds 3\nx:a 1\n").others


def test_the_first_name_present_wins() -> None:
    scan = TEXT.scan("x:b 1\nx:a 2\n")
    found = scan.first("x:a_total", "x:a", "x:b")
    assert found is not None
    assert found[0].value == 2.0
    assert scan.first("x:a_total") is None


def test_a_megabyte_of_blanks_is_read_in_no_time() -> None:
    """Two neighbouring patterns for blanks took time in the square of their number: the event loop stood still."""
    start = time.thread_time()
    assert _values("x:a" + " " * 1_000_000 + "\n") == []
    assert time.thread_time() - start < 1.0


def test_a_page_of_endless_series_is_no_sample() -> None:
    with pytest.raises(BadMetrics, match="more than 10000 series"):
        TEXT.scan("".join(f'x:a{{l="{number}"}} 1\n' for number in range(10_001)))
