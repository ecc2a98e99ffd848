"""How fast prompts may follow each other: a leaky bucket with a depth per priority."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extproc.model import Pace, Priority
from extproc.pace import AGAIN_S, GIVEN_BACK, Prefills

P0, P1, P2 = Priority
PACE = Pace(tokens_per_s=1000.0, depths=(300.0, 200.0, 100.0))


class Request(NamedTuple):
    priority: Priority
    prompt_tokens: int


def lets(prefills: Prefills, wants: Sequence[tuple[Priority, int]], now: float, pace: Pace) -> tuple[int, float]:
    """How many of them may go, and when the next."""
    going, at = prefills.lets([Request(*want) for want in wants], now, pace)
    assert [tuple(one) for one in going] == list(wants[: len(going)])
    return len(going), at


def _held_back(prefills: Prefills, priority: Priority) -> float:
    """Until when; at 0 s."""
    count, at = lets(prefills, [(priority, 10)], 0.0, PACE)
    assert count == 0
    return at


def test_an_empty_backlog_lets_anybody_go_however_long_the_prompt() -> None:
    assert lets(Prefills(), [(P2, 50_000)], 0.0, PACE) == (1, math.inf)


def test_it_goes_by_itself_at_the_pace() -> None:
    prefills = Prefills()
    prefills.took(500, 1.0, PACE)
    assert prefills.left(1.0, PACE) == 500
    assert prefills.left(1.2, PACE) == pytest.approx(300)
    assert prefills.left(9.0, PACE) == 0


def test_each_priority_goes_while_less_stands_before_it_than_its_depth() -> None:
    prefills = Prefills()
    prefills.took(250, 0.0, PACE)
    assert lets(prefills, [(P0, 10)], 0.0, PACE) == (1, math.inf)
    assert _held_back(prefills, P1) == pytest.approx(0.06 + AGAIN_S)
    assert _held_back(prefills, P2) == pytest.approx(0.17 + AGAIN_S)


def test_a_prompt_of_p1_or_p2_must_fit_too_and_one_beyond_the_depth_finds_nothing_before_it() -> None:
    prefills = Prefills()
    prefills.took(50, 0.0, PACE)
    for priority, most in ((P1, 150), (P2, 25)):
        assert lets(prefills, [(priority, most)], 0.0, PACE) == (1, math.inf)
        assert lets(prefills, [(priority, most + 1)], 0.0, PACE)[0] == 0
    count, at = lets(prefills, [(P2, 32_000)], 0.0, PACE)
    assert count == 0
    assert at == pytest.approx(0.05 + AGAIN_S)
    assert lets(prefills, [(P2, 32_000)], at, PACE) == (1, math.inf)
    assert lets(prefills, [(P0, 32_000)], 0.0, PACE) == (1, math.inf), "it may be late itself, but stands before no P0"


def test_who_goes_stands_before_the_next_of_the_same_ask() -> None:
    count, at = lets(Prefills(), [(P1, 100), (P1, 100), (P1, 100)], 0.0, PACE)
    assert count == 2
    assert at == pytest.approx(0.1 + AGAIN_S)


def test_what_went_by_a_depth_counts_for_all() -> None:
    """Else a stream of P0 would leave the lower ones their whole depth on top."""
    prefills = Prefills()
    for _ in range(4):
        prefills.took(100, 0.0, PACE)
    assert _held_back(prefills, P2) == pytest.approx(0.32 + AGAIN_S)


@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 400)), max_size=20), st.floats(0, 1e4))
def test_who_is_held_back_goes_at_the_moment_that_was_said(wants: list[tuple[Priority, int]], now: float) -> None:
    prefills = Prefills()
    prefills.took(700, now, PACE)
    count, at = lets(prefills, wants, now, PACE)
    for _, prompt_tokens in wants[:count]:
        prefills.took(prompt_tokens, now, PACE)
    if count < len(wants):
        assert at > now
        assert lets(prefills, wants[count : count + 1], at, PACE) == (1, math.inf)


def test_replicas_share_a_pace() -> None:
    assert PACE.shared(1) == PACE
    assert PACE.shared(2) == Pace(500.0, (150.0, 100.0, 50.0))


def test_of_a_request_that_is_over_nothing_holds_a_p0_back() -> None:
    prefills = Prefills()
    through_at = prefills.took(5000, 0.0, PACE)
    assert through_at == pytest.approx(5.0)
    prefills.over(5000, through_at, 1.0, PACE)
    assert prefills.left(1.0, PACE) == 300
    assert lets(prefills, [(P0, 10)], 1.0, PACE) == (1, math.inf)


def test_what_others_hold_stays_where_one_is_over() -> None:
    prefills = Prefills()
    through_at = prefills.took(5000, 0.0, PACE)
    prefills.took(1000, 0.0, PACE)
    prefills.over(5000, through_at, 1.0, PACE)
    assert prefills.left(1.0, PACE) == pytest.approx(1000)


def test_of_a_place_that_holds_back_no_p0_others_get_little() -> None:
    """In a storm of clients that leave, newcomers in all their places cost the engines a twentieth of their work."""
    prefills = Prefills()
    through_at = prefills.took(250, 0.0, PACE)
    prefills.over(250, through_at, 0.0, PACE)
    assert prefills.left(0.0, PACE) == pytest.approx(250 * (1 - GIVEN_BACK))


def test_a_request_that_ends_after_its_prompt_is_through_takes_nothing_from_others() -> None:
    prefills = Prefills()
    through_at = prefills.took(500, 0.0, PACE)
    prefills.took(1000, 1.0, PACE)
    prefills.over(500, through_at, 1.0, PACE)
    assert prefills.left(1.0, PACE) == 1000


def test_what_was_through_stays_through_when_the_pace_changes() -> None:
    """A long prompt makes a line, the line makes the pace lean, and the prompt is not on its way anew for that."""
    prefills = Prefills()
    prefills.took(30_000, 0.0, PACE)
    assert prefills.left(23.0, PACE) == pytest.approx(7000)
    leaning = structs.replace(PACE, lean=0.1)
    assert prefills.left(24.0, leaning) == pytest.approx(6000)
    assert prefills.left(25.0, leaning) == pytest.approx(5900)
