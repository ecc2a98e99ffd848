"""When the control loop steps, and what becomes of its decisions. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from extproc.clock import LoopClock
from extproc.config import ControllerName, FailurePolicy, PoolPolicy
from extproc.config.schema import DEFAULT_QUEUES
from extproc.control import PERIOD_S, ControlLoop
from extproc.controllers.compose import PoolController
from extproc.controllers.protocol import Controller
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, Latency, PoolState
from extproc.sim.virtual_time import run_virtual

ENGINE = "a:1"
INITIAL = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))


class _Pool:
    """The ports of a control loop, in memory: what engines say goes in, what is published comes out."""

    def __init__(self, controller: Controller | None = None) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.published: list[PoolState] = []
        self.finished: list[Latency] = []
        self._fleet = Fleet(configured=(ENGINE,))
        self._changed: Callable[[], None] = lambda: None
        both = PoolPolicy(controllers=(ControllerName.FIXED, ControllerName.WATERMARK))
        own = PoolController(both, queues=DEFAULT_QUEUES, failure=FailurePolicy())
        self.loop = ControlLoop(controller or own, self, fleet=self, demand=self, clock=self.clock, initial=INITIAL)

    def publish(self, state: PoolState) -> None:
        self.published.append(state)

    def fleet(self) -> Fleet:
        return self._fleet

    def on_sample(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def demand(self, now: float) -> Demand:
        return Demand()

    def take_latencies(self) -> tuple[Latency, ...]:
        taken, self.finished = tuple(self.finished), []
        return taken

    def says(self, usage: float) -> None:
        sample = EngineSample(engine=ENGINE, at=self.clock.now(), kv_usage=usage, kv_capacity_tokens=1000)
        self._fleet = Fleet(configured=(ENGINE,), samples={ENGINE: sample})
        self._changed()


async def _running(pool: _Pool, for_s: float) -> None:
    """Runs the loop beside the caller's script for some virtual seconds."""
    try:
        async with asyncio.timeout(for_s):
            await pool.loop.run()
    except TimeoutError:
        return


def test_steps_at_least_every_50_ms_without_any_sample() -> None:
    async def main() -> list[PoolState]:
        pool = _Pool()
        await _running(pool, 1.01)
        return pool.published

    states = run_virtual(main())
    assert [state.at for state in states] == pytest.approx([i * PERIOD_S for i in range(21)])


def test_a_sample_is_acted_on_at_once_and_samples_of_one_moment_make_one_step() -> None:
    async def main() -> list[PoolState]:
        pool = _Pool()

        async def script() -> None:
            await asyncio.sleep(0.02)
            for usage in (0.5, 0.7, 0.9):
                pool.says(usage)

        await asyncio.gather(_running(pool, 0.04), script())
        return pool.published

    states = run_virtual(main())
    assert [state.at for state in states] == [0.0, 0.02]
    assert states[1].saturation == 0.9
    assert states[1].rejection[2] > 0


def test_engines_that_fall_silent_are_noticed_without_a_sample() -> None:
    async def main() -> list[PoolState]:
        pool = _Pool()
        pool.says(0.2)
        await _running(pool, 1.2)
        return pool.published

    states = run_virtual(main())
    first_blind = next(state for state in states if state.engines_reporting == 0)
    assert 1.0 < first_blind.at <= 1.0 + 2 * PERIOD_S
    assert [limit.tokens for limit in first_blind.limits] == [800, 400, 400]


def test_each_step_sees_the_state_before_it() -> None:
    class Counting:
        def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
            return PoolState(limits=previous.limits, at=now, engines_reporting=previous.engines_reporting + 1)

    async def main() -> _Pool:
        pool = _Pool(Counting())
        await _running(pool, 0.11)
        return pool

    pool = run_virtual(main())
    assert [state.engines_reporting for state in pool.published] == [1, 2, 3]
    assert pool.loop.state == pool.published[-1]


def test_each_finished_request_is_told_to_one_step() -> None:
    class Listening:
        def __init__(self) -> None:
            self.heard: list[tuple[Latency, ...]] = []

        def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
            self.heard.append(demand.latencies)
            return previous

    async def main() -> list[tuple[Latency, ...]]:
        listening = Listening()
        pool = _Pool(listening)
        pool.finished += [Latency(1.0), Latency(2.0)]
        await _running(pool, 0.06)
        pool.finished.append(Latency(3.0))
        pool.loop.step()
        return listening.heard

    assert run_virtual(main()) == [(Latency(1.0), Latency(2.0)), (), (Latency(3.0),)]


def test_a_bug_in_a_step_ends_the_task_group_that_owns_the_loop() -> None:
    class Broken:
        def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
            if now > 0.1:
                raise ZeroDivisionError("a bug")
            return previous

    async def main() -> None:
        pool = _Pool(Broken())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pool.loop.run())
            tasks.create_task(asyncio.sleep(3600))

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main())
    assert caught.group_contains(ZeroDivisionError)
