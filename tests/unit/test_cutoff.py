"""What a replica does by itself while it is cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cutoff import HOLDS, SHARE, admissible_alone, alone
from extproc.model import NOTHING, UNLIMITED, Load, Priority
from extproc.ports import Want
from tests.support.pools import limited, reserving

P0, P1, P2 = Priority


def test_a_share_of_the_limit_is_taken_up_slowly_and_given_up_at_once() -> None:
    state = limited(slots=20)
    below = alone(state, Load(0, 1), replicas=2, for_s=0, hold_s=3)
    assert below.limits[0].slots == 1
    assert alone(state, Load(0, 1), replicas=2, for_s=3, hold_s=3).limits[0].slots == pytest.approx(5)
    assert alone(state, Load(0, 1), replicas=2, for_s=60, hold_s=3).limits[0].slots == pytest.approx(9)
    above = alone(state, Load(0, 15), replicas=2, for_s=0, hold_s=3)
    assert [limit.slots for limit in above.limits] == pytest.approx([10, 9, 9]), "P0 need not wait for the margin"
    assert alone(state, Load(0, 15), replicas=2, for_s=60, hold_s=3).limits[0].slots == pytest.approx(9)


def test_p2_is_refused_and_reserves_shrink_with_the_limit() -> None:
    cut = alone(reserving(limited(slots=20), p0=4), NOTHING, replicas=2, for_s=60, hold_s=3)
    assert cut.rejection == (0.0, 0.0, 1.0)
    assert cut.reserved[0].slots == pytest.approx(4 * SHARE / 2)
    assert (
        admissible_alone(
            [Want(P0, Load(1, 1)), Want(P2, Load(1, 1)), Want(P0, Load(1, 1))], [NOTHING] * 3, NOTHING, cut
        )
        == 1
    )


def test_an_unlimited_pool_stays_unlimited() -> None:
    cut = alone(limited(), NOTHING, replicas=4, for_s=0, hold_s=3)
    assert cut.limits[0] == UNLIMITED
    assert admissible_alone([Want(P1, Load(1e9, 1))], [NOTHING] * 3, NOTHING, cut) == 1


def test_nobody_goes_above_the_share_not_even_alone() -> None:
    cut = alone(limited(slots=10, tokens=1000), NOTHING, replicas=4, for_s=60, hold_s=3)
    assert admissible_alone([Want(P0, Load(900, 1))], [NOTHING] * 3, NOTHING, cut) == 0


@given(
    held=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    spare=st.integers(0, 5),
    hold_s=st.floats(0.5, 20),
    at=st.floats(0, 2),
)
def test_all_replicas_cut_off_together_stay_within_the_limit_they_shared(
    held: list[int], spare: int, hold_s: float, at: float
) -> None:
    """Those above their share fall as their requests end, evenly over one mean hold; the others fill up to their caps."""
    limit = sum(held) + spare
    for_s = at * HOLDS * hold_s
    total = 0.0
    for base in held:
        cap = alone(limited(slots=limit), Load(0, base), replicas=len(held), for_s=for_s, hold_s=hold_s).limits[0].slots
        still_open = base * max(0.0, 1 - for_s / hold_s)
        total += max(cap, still_open) if base > cap else cap
    assert total <= limit + 1e-6


@given(replicas=st.integers(1, 9), each=st.integers(1, 40))
def test_at_the_loss_p0_replaces_what_ends_within_its_even_part(replicas: int, each: int) -> None:
    cut = alone(limited(slots=replicas * each), Load(0, each), replicas=replicas, for_s=0.0, hold_s=3.0)
    assert admissible_alone([Want(P0, Load(0, 1))], [Load(0, each - 1), NOTHING, NOTHING], NOTHING, cut) == 1
