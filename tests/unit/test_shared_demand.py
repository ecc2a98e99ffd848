"""Whose traffic a replica's controllers see."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from extproc.clock import LoopClock
from extproc.state.redis import RedisState
from extproc.state.scripts import pack_state, read_state
from tests.support.pools import limited
from tests.support.shared import Calls
from tests.support.virtual import virtual

NOWHERE = "redis://127.0.0.1:1"


@virtual
@pytest.mark.parametrize(
    "asks", [True, False], ids=["a replica that never heard of another", "a process without requests"]
)
async def test_who_hears_of_nobody_takes_its_own_traffic_for_all_only_if_it_has_any(asks: bool) -> None:
    clock = LoopClock(asyncio.get_running_loop())
    state = RedisState(NOWHERE, "x", process="a", clock=clock, watch=Calls(), may_lead=True, asks=asks)
    try:
        assert state.pool("main", limited(5)).demand(0.0).whole == asks
    finally:
        await state.close()


@pytest.mark.parametrize("lost", [1, 5, 30])
def test_a_state_that_is_not_one_of_ours_is_an_error_that_its_readers_expect(lost: int) -> None:
    packed, _ = pack_state(limited(5))
    parts = msgspec.msgpack.decode(packed)[:-lost]
    with pytest.raises((ValueError, TypeError)):
        read_state(msgspec.msgpack.encode(parts), at=0.0)
    assert read_state(packed, at=0.0) == limited(5)
