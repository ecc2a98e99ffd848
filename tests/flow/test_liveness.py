"""Dispatchers under any traffic, over a ledger of their own and over a shared one: left in peace, nobody waits for what is free."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.capacity import fits
from extproc.clock import LoopClock
from extproc.model import NOTHING, Load, Pace, PoolState, Priority
from extproc.ports import Want
from extproc.queues.bands import MOST_PASSES
from extproc.sim.virtual_time import run_virtual
from extproc.state.local import LocalLedger
from tests.support.crowd import Kind, Replica, Shared, Step

ASKED_FOR = 16
"""So many of a line at a time."""
SETTLED_S = 3.0
"""After which nobody is held back by care any more."""
LOOK_S = 1.0
"""Ghost load goes by and by: what still holds now lets somebody in a look later at the latest."""


def state_of(limits: tuple[Load, Load, Load], first: Load, more: Load, pace: Pace | None) -> PoolState:
    return PoolState(limits=limits, reserved=(first, first + more, NOTHING), pace=pace)


_LOADS = st.builds(Load, st.sampled_from([60.0, 60.0, 0.0, 30.0, math.inf]), st.sampled_from([math.inf, 0.0, 1.0, 3.0]))
_RESERVED = st.sampled_from([NOTHING, NOTHING, Load(20, 0), Load(0, 1)])
STATES = st.lists(
    st.builds(
        state_of,
        _LOADS.map(lambda load: (load, load, load)) | st.tuples(_LOADS, _LOADS, _LOADS),
        _RESERVED,
        _RESERVED,
        st.sampled_from([None, None, Pace(200.0, (60.0, 20.0, 14.0))]),
    ),
    min_size=1,
    max_size=3,
)
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([*[Kind.SEND] * 8, *[Kind.END] * 4, *Kind]),
        st.integers(0, 2),
        st.integers(0, 9),
        st.sampled_from(Priority),
        st.sampled_from([1, 15, 20, 25, 30, 35, 40, 70]),
        st.sampled_from([0.0, 0.0004, 0.0004, 0.005, 0.005, 0.3]),
    ),
    min_size=4,
    max_size=40,
)

CROWDED = [state_of((Load(60, math.inf),) * 3, reserved, NOTHING, None) for reserved in (Load(20, 0), NOTHING)]
RACES = st.lists(
    st.builds(
        Step,
        st.sampled_from([Kind.SEND, Kind.SEND, Kind.END]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([Priority.P0, Priority.P1]),
        st.sampled_from([15, 20, 25, 30, 35, 40]),
        st.sampled_from([0.0004, LOOK_S]),
    ),
    min_size=5,
    max_size=30,
)
"""What is on its way meets what comes: two in a round trip."""


def nobody_waits(replicas: Sequence[Replica], state: PoolState, ghosts: Load) -> None:
    """For what is free. `ghosts`: what else is held, or more."""
    used = [sum((one.dispatcher.in_use[p] for one in replicas), NOTHING) for p in Priority]

    def goes(priority: Priority, load: Load) -> bool:
        return fits(Want(priority, load), used, ghosts, state)

    heads = [next(one.dispatcher.bands.heads(), None) for one in replicas]
    first = min((head for head in heads if head is not None), key=lambda w: (w.priority, w.arrived), default=None)
    if first is None:
        return
    assert not goes(first.priority, first.load)
    if len(replicas) > 1 or state.pace is not None or first.passed >= MOST_PASSES:
        return
    left = state.limits[first.priority] - sum(used, ghosts)
    if first.load.tokens > left.tokens and left.slots >= 1:
        line = islice(replicas[0].dispatcher.bands[first.priority].heads(), ASKED_FOR)
        small = [waiter for waiter in line if waiter.load.fits(left)]
        assert not any(goes(waiter.priority, waiter.load) for waiter in small[:1])


@settings(max_examples=150)
@given(states=STATES, steps=STEPS)
def test_nobody_waits_for_what_is_free(states: list[PoolState], steps: list[Step]) -> None:
    async def play() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        ledger = LocalLedger(states[0], clock)
        replica = Replica(ledger, clock, put=ledger.publish)
        for step in steps:
            replica.act(step, states)
            await asyncio.sleep(step.then_s)
        await asyncio.sleep(SETTLED_S)
        ghosts = ledger.ghosts
        await asyncio.sleep(LOOK_S)
        nobody_waits([replica], ledger.state, ghosts)
        assert replica.dispatcher.bands.count or not replica.dispatcher.demand(clock.now()).paced

    run_virtual(play())


def play_shared(count: int, states: Sequence[PoolState], *, steps: Sequence[Step], starts_after_s: float) -> None:
    async def play() -> None:
        shared = Shared(count, states[0])
        await asyncio.sleep(starts_after_s)
        for step in steps:
            shared.act(step, states)
            await asyncio.sleep(step.then_s)
            if step.then_s == LOOK_S:
                nobody_waits(shared.living, shared.state, shared.ghosts)
        shared.store.lost = False
        await asyncio.sleep(SETTLED_S)
        ghosts = shared.ghosts
        await asyncio.sleep(LOOK_S)
        nobody_waits(shared.living, shared.state, ghosts)
        await shared.stop()

    run_virtual(play())


@pytest.mark.parametrize("count", [1, 3])
@settings(max_examples=150)
@given(states=STATES, steps=STEPS, starts_after_s=st.sampled_from([0.01, SETTLED_S]))
def test_nobody_waits_for_what_is_free_over_all_replicas(
    count: int, states: list[PoolState], steps: list[Step], starts_after_s: float
) -> None:
    play_shared(count, states, steps=steps, starts_after_s=starts_after_s)


@settings(max_examples=300)
@given(state=st.sampled_from(CROWDED), steps=RACES)
def test_nobody_waits_for_what_is_free_who_came_while_the_ledger_was_asked(state: PoolState, steps: list[Step]) -> None:
    play_shared(1, [state], steps=steps, starts_after_s=SETTLED_S)
