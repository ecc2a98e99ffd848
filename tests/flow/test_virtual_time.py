"""The loop whose clock jumps."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from extproc.sim.virtual_time import LostWakeup, VirtualTimeLoop, run_virtual
from tests.support.virtual import virtual

HOUR_S = 3600.0


@virtual
async def test_an_hour_is_over_at_once_and_the_clock_says_so() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(HOUR_S)
    assert loop.time() == HOUR_S


@virtual
async def test_timers_ring_in_the_order_of_their_times_and_never_early() -> None:
    loop, rung = asyncio.get_running_loop(), list[tuple[float, float]]()

    def ring(at_s: float) -> None:
        rung.append((at_s, loop.time()))

    for at_s in (3.0, 1.0, 2.0, 1.5):
        loop.call_at(at_s, ring, at_s)
    await asyncio.sleep(4.0)
    assert rung == [(at_s, at_s) for at_s in (1.0, 1.5, 2.0, 3.0)]


@virtual
async def test_a_late_timer_rings_at_once() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stall(5.0)
    loop.call_at(1.0, rung.set)
    await rung.wait()
    assert loop.time() == 5.0


@virtual
async def test_a_timer_that_was_called_off_does_not_ring() -> None:
    loop, rung = asyncio.get_running_loop(), list[str]()
    kept, off = partial(rung.append, "kept"), partial(rung.append, "off")
    loop.call_at(1.0, off).cancel()
    late = loop.call_at(2.0, off)
    loop.call_at(1.5, late.cancel)
    same = loop.call_at(3.0, off)
    loop.call_at(2.5, kept)
    loop.call_at(3.0 - 1e-10, same.cancel)  # they come due together
    await asyncio.sleep(4.0)
    assert rung == ["kept"]


@virtual
async def test_timers_that_were_called_off_are_not_kept_until_their_time() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for _ in range(10_000):
        loop.call_at(HOUR_S, loop.stop).cancel()
        await asyncio.sleep(0)
    assert len(loop._timers) < 1000


def test_whoever_waits_for_what_cannot_come_is_told_so() -> None:
    with pytest.raises(LostWakeup, match="no timer is set"):
        run_virtual(asyncio.Event().wait())
