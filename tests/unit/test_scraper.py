"""The scraper's arithmetic: when the next scrape starts, and what is worth a log line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.engines.fetch import Result
from extproc.engines.scraper import LOG_EVERY_S, LogLimit, full_page_interval_s, next_start


@pytest.mark.parametrize(
    ("now", "expected"),
    [(10.0, 10.1), (10.04, 10.1), (10.1001, 10.2), (10.75, 10.8), (9.95, 10.0)],
)
def test_starts_stay_on_the_grid_and_skip_what_was_missed(now: float, expected: float) -> None:
    assert next_start(now, 10.0, 0.1) == pytest.approx(expected)


@given(st.floats(0, 1e6), st.floats(-10, 10), st.floats(0.05, 5))
def test_the_next_start_is_at_most_an_interval_away(now: float, offset: float, interval_s: float) -> None:
    wait_s = next_start(now, now + offset, interval_s) - now
    assert -1e-6 <= wait_s <= interval_s + 1e-6


def test_logs_a_change_once_and_not_more_than_once_a_minute() -> None:
    limit = LogLimit()
    assert not limit.due(0, Result.OK)
    assert limit.due(1, Result.TIMEOUT)
    assert not limit.due(2, Result.TIMEOUT)
    assert not limit.due(3, Result.REFUSED)
    assert not limit.due(4, Result.OK)
    assert limit.due(1 + LOG_EVERY_S, Result.OK)
    assert not limit.due(500, Result.OK)


@pytest.mark.parametrize(
    ("took_s", "interval_s"),
    [(0.001, 0.05), (0.01, 0.1), (0.027, 0.27), (0.3, 0.5)],
)
def test_a_full_page_takes_at_most_a_tenth_of_the_engines_time(took_s: float, interval_s: float) -> None:
    assert full_page_interval_s(0.05, took_s, most_s=0.5) == pytest.approx(interval_s)


def test_a_full_page_is_never_read_more_often_than_the_interval() -> None:
    assert full_page_interval_s(2.0, 0.001, most_s=0.5) == 2.0
