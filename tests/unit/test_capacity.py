"""The arithmetic of an ask."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.capacity import admissible, most_slots
from extproc.model import NOTHING, Load, PoolState, Priority
from extproc.ports import Want

P0, P1, P2 = Priority


def state(slots: float = math.inf, tokens: float = math.inf, reserved: tuple[float, float] = (0, 0)) -> PoolState:
    limit = Load(tokens, slots)
    return PoolState(limits=(limit, limit, limit), reserved=(Load(0, reserved[0]), Load(0, sum(reserved)), NOTHING))


def wants(*priorities: Priority, tokens: float = 1) -> list[Want]:
    return [Want(priority, Load(tokens, 1)) for priority in priorities]


@pytest.mark.parametrize(
    ("held", "asked", "limit", "admitted"),
    [
        ((0, 0, 0), [P0, P0, P0], state(slots=2), 2),
        ((1, 1, 0), [P2], state(slots=2), 0),
        ((0, 0, 0), [P2, P2], state(slots=4, reserved=(2, 1)), 1),
        ((0, 0, 1), [P1, P1], state(slots=4, reserved=(2, 1)), 1),
        ((0, 0, 1), [P1, P0, P0, P0], state(slots=4, reserved=(2, 1)), 3),
        ((2, 0, 1), [P1], state(slots=4, reserved=(2, 1)), 1),
        ((0, 0, 0), [P0], state(slots=0), 0),
        ((0, 0, 0), [], state(slots=1), 0),
    ],
)
def test_slots_and_reserves(held: tuple[int, int, int], asked: list[Priority], limit: PoolState, admitted: int) -> None:
    in_use = [Load(count, count) for count in held]
    assert admissible(wants(*asked), in_use, NOTHING, limit) == admitted


def test_ghost_load_takes_room() -> None:
    assert admissible(wants(P0), [NOTHING] * 3, Load(5, 1), state(slots=1)) == 0


def test_a_want_above_the_token_limit_goes_alone_but_slots_bind_always() -> None:
    large = wants(P1, P1, tokens=500)
    assert admissible(large, [NOTHING] * 3, NOTHING, state(tokens=100)) == 1
    assert admissible(large, [NOTHING, NOTHING, Load(1, 1)], NOTHING, state(tokens=100)) == 0
    assert admissible(large, [NOTHING] * 3, NOTHING, state(tokens=100, slots=0)) == 0
    assert admissible(large, [NOTHING] * 3, NOTHING, state(tokens=0)) == 0


@pytest.mark.parametrize(
    ("limit", "slots"),
    [
        (state(slots=8), (8, 8, 8)),
        (state(slots=8, reserved=(2, 1)), (8, 6, 5)),
        (state(slots=2.7), (2, 2, 2)),
        (state(slots=2, reserved=(2, 0)), (2, 1, 1)),
        (state(slots=0), (1, 1, 1)),
        (state(tokens=100), (math.inf, math.inf, math.inf)),
    ],
)
def test_what_an_empty_pool_leaves(limit: PoolState, slots: tuple[float, float, float]) -> None:
    assert tuple(most_slots(limit, priority) for priority in Priority) == slots
    for priority, most in zip(Priority, slots, strict=True):
        if 1 < most < math.inf:
            assert admissible([Want(priority, Load(1, most))], [NOTHING] * 3, NOTHING, limit) == 1
            assert admissible([Want(priority, Load(1, most + 1))], [NOTHING] * 3, NOTHING, limit) == 0


loads = st.builds(Load, st.integers(0, 300).map(float), st.integers(0, 5).map(float))


@given(
    asked=st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 300)), max_size=12),
    in_use=st.tuples(loads, loads, loads),
    ghosts=loads,
    slots=st.integers(0, 20),
    tokens=st.integers(0, 1500),
    reserved=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_what_is_admitted_keeps_every_promise(
    asked: list[tuple[Priority, int]],
    in_use: tuple[Load, Load, Load],
    ghosts: Load,
    slots: int,
    tokens: int,
    reserved: tuple[int, int],
) -> None:
    pool = state(slots=slots, tokens=tokens, reserved=reserved)
    line = [Want(priority, Load(size, 1)) for priority, size in asked]
    admitted = admissible(line, in_use, ghosts, pool)
    held = list(in_use)
    for want in line[:admitted]:
        alone = sum(held, ghosts).empty
        held[want.priority] += want.load
        total = sum(held, ghosts)
        assert total.slots <= slots
        assert total.tokens <= tokens or alone
        for above in range(want.priority):
            below = sum(held[above + 1 :], ghosts)
            assert below.slots <= slots - pool.reserved[above].slots
