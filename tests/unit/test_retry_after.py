"""Retry-After: in bounds, spread, never all at one value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.config import RetryAfterPolicy
from extproc.retry_after import draining_retry_after_s, retry_after_s

DEFAULT = RetryAfterPolicy()
chances = st.floats(0, 1, exclude_max=True)


@given(wait=st.none() | st.floats(0, 1e9), chance=chances)
def test_always_within_min_and_max(wait: float | None, chance: float) -> None:
    assert 1 <= retry_after_s(wait, DEFAULT, chance=chance) <= 60


@given(wait=st.none() | st.floats(0, 1e9))
def test_the_spread_is_at_least_a_fifth_to_either_side_wherever_the_middle_is(wait: float | None) -> None:
    """An answer cut off at a clamp would bring everyone back at once (19 of 20 callers at the same 600.0 s)."""
    early, late = retry_after_s(wait, DEFAULT, chance=0.0), retry_after_s(wait, DEFAULT, chance=0.999999)
    assert late / early > 1.49


def test_unknown_drain_means_three_seconds_give_or_take() -> None:
    assert retry_after_s(None, DEFAULT, chance=0.5) == 3
    assert retry_after_s(0.0, DEFAULT, chance=0.5) == 3


def test_the_expected_wait_is_what_is_told() -> None:
    assert retry_after_s(20.0, DEFAULT, chance=0.5) == 20


@given(chance=chances)
def test_draining_sends_them_elsewhere_soon(chance: float) -> None:
    assert 1 <= draining_retry_after_s(chance=chance) <= 3
