"""The law of quotas: a bucket that refills, in seconds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import Allowance, Tenant
from extproc.quota import UNTOUCHED, Bucket, Due, due, quota_of

MINUTE = Allowance(tokens_per_s=1000 / 60, requests_per_s=10 / 60)
"""1000 tokens and 10 requests a minute, all of which may be used at once."""


def used(bucket: Bucket, tokens: float, *, now: float, times: int = 1, allowance: Allowance = MINUTE) -> Bucket:
    for _ in range(times):
        bucket = bucket.after(due(allowance, tokens), now)
    return bucket


def wait_s(bucket: Bucket, tokens: float, *, now: float, allowance: Allowance = MINUTE) -> float:
    return bucket.wait_s(due(allowance, tokens), allowance, now)


def test_a_whole_minutes_tokens_may_be_used_at_once_and_no_more() -> None:
    bucket = used(UNTOUCHED, 250, now=100.0, times=3)
    assert wait_s(bucket, 250, now=100.0) == 0
    assert wait_s(bucket, 251, now=100.0) == pytest.approx(0.06)
    assert bucket.left(MINUTE, 100.0) == pytest.approx((250, 7))


def test_requests_are_bounded_apart_from_tokens() -> None:
    bucket = used(UNTOUCHED, 1, now=100.0, times=10)
    assert wait_s(bucket, 1, now=100.0) == pytest.approx(6)
    assert wait_s(bucket, 1, now=106.0) == 0


def test_it_refills_steadily_and_not_above_the_burst() -> None:
    bucket = used(UNTOUCHED, 1000, now=0.0)
    assert bucket.left(MINUTE, 30.0)[0] == pytest.approx(500)
    assert bucket.left(MINUTE, 1e6)[0] == pytest.approx(1000)
    assert bucket.owed(1e6) == Due()


def test_a_short_burst_spreads_the_use() -> None:
    evenly = Allowance(requests_per_s=10, burst_s=1)
    bucket = used(UNTOUCHED, 1, now=0.0, times=10, allowance=evenly)
    assert wait_s(bucket, 1, now=0.0, allowance=evenly) == pytest.approx(0.1)


def test_what_is_more_than_the_whole_goes_when_nothing_is_owed_and_is_paid_off() -> None:
    assert wait_s(UNTOUCHED, 3000, now=0.0) == 0
    bucket = used(UNTOUCHED, 3000, now=0.0)
    assert wait_s(bucket, 1, now=0.0) == pytest.approx(120.06)
    assert wait_s(used(UNTOUCHED, 100, now=0.0), 3000, now=0.0) == pytest.approx(6)


def test_what_is_given_back_may_be_used_again_but_never_makes_more_than_the_whole() -> None:
    bucket = used(UNTOUCHED, 1000, now=0.0)
    back = bucket.after(due(MINUTE, 1000).scaled(-1), 10.0)
    assert back.left(MINUTE, 10.0) == pytest.approx((1000, 10))
    assert used(back, 1000, now=10.0).owed(10.0).tokens_s == pytest.approx(60)


def test_where_nothing_is_limited_nobody_waits_whatever_was_owed_under_another_policy() -> None:
    owing = used(UNTOUCHED, 9000, now=0.0)
    only_requests = Allowance(requests_per_s=10)
    assert wait_s(owing, 1000, now=0.0, allowance=only_requests) == 0
    assert owing.left(only_requests, 0.0)[0] == math.inf


def test_a_quota_that_changes_takes_what_is_owed_along() -> None:
    owing = used(UNTOUCHED, 500, now=0.0)
    doubled = Allowance(tokens_per_s=2000 / 60, requests_per_s=math.inf)
    assert owing.left(doubled, 0.0)[0] == pytest.approx(1000)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.floats(1, 1000)), max_size=60),
    st.floats(1, 600),
)
def test_over_any_time_no_more_goes_than_the_rate_and_one_burst(
    arrivals: list[tuple[float, float]], burst_s: float
) -> None:
    allowance = Allowance(tokens_per_s=10, burst_s=burst_s)
    bucket, now, begun, admitted, largest = UNTOUCHED, 0.0, 0.0, 0.0, 0.0
    for gap_s, tokens in arrivals:
        now += gap_s
        if wait_s(bucket, tokens, now=now, allowance=allowance) == 0:
            bucket = used(bucket, tokens, now=now, allowance=allowance)
            admitted, largest = admitted + tokens, max(largest, tokens)
    assert admitted <= 10 * (burst_s + now - begun) + largest + 1


@given(st.floats(0, 1e6), st.floats(1, 1e5))
def test_who_waits_as_long_as_it_was_told_fits(owed: float, tokens: float) -> None:
    bucket = used(UNTOUCHED, owed, now=0.0)
    assert wait_s(bucket, tokens, now=wait_s(bucket, tokens, now=0.0)) == pytest.approx(0, abs=1e-3)


def test_nobody_asks_for_a_quota_that_is_not_there() -> None:
    with pytest.raises(AssertionError, match="a has no quota"):
        quota_of(Tenant("a"))
