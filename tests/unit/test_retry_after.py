"""Retry-After: in bounds, in line, in no wave."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import RetryAfterPolicy
from extproc.config.section import Seconds
from extproc.model import PRIORITIES, Cost, Outcome, Priority
from extproc.retry_after import RETURN_SHARE, Backlog, Returns, golden, window
from extproc.submission import Submission
from tests.support.waves import peak_over_mean, peak_over_mean_of_seconds

DEFAULT = RetryAfterPolicy()
waits = st.none() | st.floats(0, 1e9) | st.just(math.inf)
drains = st.none() | st.floats(1e-3, 1e9)


@st.composite
def policies(draw: st.DrawFn) -> RetryAfterPolicy:
    least, base, most = sorted(draw(st.tuples(*[st.floats(1, 60)] * 3)))
    return RetryAfterPolicy(
        base_s=Seconds(base), jitter=draw(st.floats(0, 1)), min_s=Seconds(least), max_s=Seconds(most)
    )


def told(
    returns: Returns,
    now: float = 0.0,
    *,
    priority: Priority = Priority.P1,
    tokens: int = 500,
    wait_s: float | None = None,
    drain_per_s: float | None = None,
    policy: RetryAfterPolicy = DEFAULT,
    request_id: str = "",
) -> float:
    after_s = returns.told_s(
        Outcome.SHED,
        Submission(priority, Cost(tokens, 0), request_id=request_id),
        now,
        backlog=Backlog(wait_s, drain_per_s),
        policy=policy,
    )
    assert after_s is not None
    return after_s


def expected(
    returns: Returns,
    now: float = 0.0,
    *,
    tokens: int = 500,
    wait_s: float | None = None,
    drain_per_s: float | None = None,
    policy: RetryAfterPolicy = DEFAULT,
) -> float:
    one = Submission(Priority.P1, Cost(tokens, 0))
    return returns.expected_s(one, now, backlog=Backlog(wait_s, drain_per_s), policy=policy)


@given(policy=policies(), sent=st.lists(st.tuples(waits, drains, st.integers(0, 10**6), st.floats(0, 9)), max_size=30))
def test_always_within_min_and_max(
    policy: RetryAfterPolicy, sent: list[tuple[float | None, float | None, int, float]]
) -> None:
    returns, now = Returns(), 0.0
    for wait_s, drain_per_s, tokens, later_s in sent:
        now += later_s
        after_s = told(returns, now, tokens=tokens, wait_s=wait_s, drain_per_s=drain_per_s, policy=policy)
        assert policy.min_s - 1e-9 <= after_s <= policy.max_s + 1e-9
        about_s = expected(returns, now, tokens=tokens, wait_s=wait_s, drain_per_s=drain_per_s, policy=policy)
        assert policy.min_s - 1e-9 <= about_s <= policy.max_s + 1e-9


@given(wait=waits)
def test_the_spread_is_at_least_a_fifth_to_either_side_wherever_the_middle_is(wait: float | None) -> None:
    """An answer cut off at a bound would bring everyone back at once (19 of 20 callers at the same 600.0 s)."""
    one = window(wait, DEFAULT)
    assert (one.earliest_s + one.least_s) / one.earliest_s > 1.49


def test_unknown_drain_means_three_seconds_give_or_take_a_fifth() -> None:
    returns = Returns()
    seen = sorted(told(returns) for _ in range(1000))
    assert 2.4 <= seen[0] < 2.41
    assert 3.59 < seen[-1] <= 3.6
    assert expected(returns) == pytest.approx(3)


def test_who_is_refused_alone_is_told_the_expected_wait() -> None:
    returns = Returns()
    for minute in range(100):
        assert 16 <= told(returns, 60.0 * minute, wait_s=20.0, drain_per_s=1e6) <= 24
    assert expected(returns, 1e6, wait_s=20.0) == pytest.approx(20)


def test_never_before_the_others_that_are_ahead() -> None:
    """The wait for what is in the queues comes first, then the line of those sent away."""
    returns = Returns()
    first = [told(returns, wait_s=10.0, drain_per_s=10_000) for _ in range(100)]
    assert min(first) >= 8
    assert told(returns, wait_s=10.0, drain_per_s=10_000) > 8 + 100 * 500 / (RETURN_SHARE * 10_000)


def test_a_large_one_that_is_alone_comes_back_no_later_than_a_small_one() -> None:
    for tokens in (1, 1000, 100_000):
        assert told(Returns(), tokens=tokens, drain_per_s=1000) <= 3.6
    returns = Returns()
    told(returns, tokens=5000, drain_per_s=1000)
    assert told(returns, tokens=1, drain_per_s=1000) >= 2.4 + 25, "but the next one only after it"


def test_where_the_drain_is_not_known_any_more_the_line_is_forgotten() -> None:
    returns = Returns()
    for _ in range(100):
        told(returns, drain_per_s=10_000)
    assert len({told(returns) for _ in range(100)}) == 100
    assert told(returns) <= 3.6


def test_the_line_shortens_as_time_passes() -> None:
    returns = Returns()
    for _ in range(100):
        told(returns, drain_per_s=10_000)
    told_s = [expected(returns, float(now), drain_per_s=10_000) for now in (0, 10, 20)]
    assert told_s == pytest.approx([27.4, 17.4, 7.4], abs=0.2)


def test_the_more_important_do_not_stand_behind_the_less_important() -> None:
    returns = Returns()
    for _ in range(100):
        told(returns, priority=Priority.P2, drain_per_s=10_000)
    assert told(returns, priority=Priority.P0, drain_per_s=10_000) < 4
    assert told(returns, priority=Priority.P2, drain_per_s=10_000) > 25
    for _ in range(100):
        told(returns, priority=Priority.P0, drain_per_s=10_000)
    assert told(returns, priority=Priority.P1, drain_per_s=10_000) > 25


def wave(per_s: int, tokens: int, drain_per_s: float | None, *, wait_s: float | None, during_s: float) -> list[float]:
    """So many refused in one stretch of time; when the obedient among them come back, by their milliseconds."""
    returns = Returns()
    arrivals = [i * during_s / per_s for i in range(per_s)]
    return [
        at + told(returns, at, tokens=tokens, wait_s=wait_s, drain_per_s=drain_per_s, request_id=f"{at:.9f}")
        for at in arrivals
    ]


@pytest.mark.parametrize("wait_s", [None, 5.0, 20.0, 45.0])
@pytest.mark.parametrize("drain_per_s", [1_000, 20_000, 100_000, 200_000, 500_000])
@pytest.mark.parametrize("during_s", [0.0, 1.0])
def test_a_thousand_refused_in_one_second_come_back_in_no_wave(
    drain_per_s: float, wait_s: float | None, during_s: float
) -> None:
    """From lines that are within the jitter to lines a hundred times as long as a minute allows."""
    moments = wave(1000, 500, drain_per_s, wait_s=wait_s, during_s=during_s)
    assert peak_over_mean(moments) <= 1.3


@pytest.mark.parametrize("drain_per_s", [1_000, 20_000, 100_000, 200_000, 500_000])
@pytest.mark.parametrize("during_s", [0.0, 1.0])
def test_clients_that_read_whole_seconds_come_back_in_no_wave(drain_per_s: float, during_s: float) -> None:
    returns, moments = Returns(), []
    for i in range(1000):
        at = i * during_s / 1000
        moments.append(at + math.ceil(told(returns, at, wait_s=5.0, drain_per_s=drain_per_s)))
    assert peak_over_mean_of_seconds(moments) <= 1.3


@pytest.mark.parametrize("drain_per_s", [20_000, 100_000, 200_000])
def test_no_more_than_a_fifth_of_the_drain_comes_back_where_a_minute_is_long_enough(drain_per_s: float) -> None:
    count = round(40 * RETURN_SHARE * drain_per_s / 500)
    moments = wave(count, 500, drain_per_s, wait_s=5.0, during_s=1.0)
    per_second = Counter(math.floor(moment) for moment in moments)
    assert max(per_second.values()) <= 1.1 * RETURN_SHARE * drain_per_s / 500 + 1


@given(st.integers(0, 10**9), st.text(max_size=40))
def test_any_stretch_of_the_sequence_is_even(first: int, request_id: str) -> None:
    tenths = Counter(math.floor(10 * golden(first + i, request_id)) for i in range(200))
    assert set(tenths) == set(range(10))
    assert max(tenths.values()) <= 24


def test_replicas_do_not_tell_the_same_times() -> None:
    assert golden(1, "a") != golden(1, "b")


def test_draining_sends_them_elsewhere_soon_and_needs_no_line() -> None:
    returns = Returns()
    for _ in range(1000):
        after_s = returns.told_s(
            Outcome.DRAINING,
            Submission(Priority.P1, Cost(500, 0)),
            0.0,
            backlog=Backlog(50.0, 100.0),
            policy=DEFAULT,
        )
        assert after_s is not None
        assert 1 <= after_s <= 3
    assert told(returns) <= 3.6


def test_who_need_not_come_back_is_told_nothing_and_needs_no_place() -> None:
    returns = Returns()
    for priority in PRIORITIES:
        for _ in range(100):
            too_large = Submission(priority, Cost(10**6, 0))
            assert (
                returns.told_s(Outcome.TOO_LARGE, too_large, 0.0, backlog=Backlog(None, 100.0), policy=DEFAULT) is None
            )
    assert told(returns) <= 3.6
