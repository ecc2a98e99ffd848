"""The law `pid`, step by step, and on the plant it is made for."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest

from extproc.config import FailurePolicy, PidPolicy, ShedOrder
from extproc.controllers.pid import LEAST_PLANT_GAIN, PERIOD_S, RESTART_S, Pid, PidMemory
from extproc.fleet import EngineSample, Fleet
from extproc.model import NOTHING, UNLIMITED, Demand, Load, PoolState

START = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
CAPACITY_TOKENS = 1000
SETPOINT, KP, KI = 0.86, 1.0, 0.3


class _Bench:
    """The law stepped by hand; what is offered is `gain` times the capacity per second, `held` share in flight."""

    def __init__(self, policy: PidPolicy | None = None, *, gain: float = 1.0, held: float = 9.0) -> None:
        self.law = Pid(policy or PidPolicy(shed=ShedOrder.UNIFORM), FailurePolicy())
        self.now = 0.0
        per_s = gain * CAPACITY_TOKENS / 10
        self.demand = Demand(
            offered_per_s=(0, per_s, 0),
            in_use=(NOTHING, Load(held * CAPACITY_TOKENS, 1), NOTHING),
            mean_cost=Load(10, 1),
        )

    def step(
        self, usage: float | None, *, after_s: float = PERIOD_S, capacity: int | None = CAPACITY_TOKENS
    ) -> PoolState:
        self.now += after_s
        sample = EngineSample(engine="a", at=self.now, kv_usage=usage, kv_capacity_tokens=capacity)
        fleet = Fleet(configured=("a",), samples=MappingProxyType({"a": sample}))
        return self.law.step(self.now, fleet, demand=self.demand, previous=START)


def test_it_starts_by_admitting_all_within_the_setpoint() -> None:
    state = _Bench().step(0.3)
    assert state.limits == (Load(SETPOINT * CAPACITY_TOKENS, math.inf),) * 3
    assert state.rejection == (0, 0, 0)
    assert (state.saturation, state.reason) == (0.3, "pid")


def test_each_term_moves_both_outputs_by_its_part_of_the_velocity_form() -> None:
    policy = PidPolicy(kp=0.5, ki=0.2, kd=0.01, shed=ShedOrder.UNIFORM)
    bench = _Bench(policy, gain=2.0)
    errors = [SETPOINT - usage for usage in (0.90, 0.91, 0.93)]
    bench.step(0.90)
    bench.step(0.91)
    before = bench.law.memory
    state = bench.step(0.93)
    wanted = 0.5 * (errors[2] - errors[1]) + 0.2 * errors[2] * PERIOD_S
    wanted += 0.01 * (errors[2] - 2 * errors[1] + errors[0]) / PERIOD_S
    assert bench.law.memory.admission == pytest.approx(before.admission + wanted / 2.0)
    assert bench.law.memory.share == pytest.approx((before.share or 0) + wanted)
    assert state.rejection[1] == pytest.approx(1 - bench.law.memory.admission)


def test_gains_are_scheduled_by_offered_load() -> None:
    """What is to be kept out is the same in tokens per second, so at four times the load the share moves a quarter."""
    fell = []
    for gain in (1.0, 4.0):
        bench = _Bench(gain=gain)
        bench.step(0.90)
        bench.step(0.95)
        fell.append(1 - bench.law.memory.admission)
    assert fell[0] == pytest.approx(4 * fell[1])
    assert fell[1] > 0


def test_with_next_to_nothing_offered_the_gain_is_bounded() -> None:
    bench = _Bench(gain=1e-9)
    bench.step(0.90)
    bench.step(0.901)
    assert 1 - bench.law.memory.admission == pytest.approx((KP * 0.001 + KI * 0.041 * PERIOD_S) / LEAST_PLANT_GAIN)


def test_hours_at_a_bound_are_forgotten_at_the_first_move_back() -> None:
    """Anti-windup: outputs are stored as clamped, so what an hour of emptiness asked for is not there to be undone."""
    patient, fresh = _Bench(), _Bench()
    for _ in range(20_000):
        patient.step(0.1)
    fresh.step(0.1)
    fresh.law.memory = PidMemory(1.0, PidPolicy().max_share, SETPOINT - 0.1, SETPOINT - 0.1, fresh.now)
    assert patient.step(0.95).rejection == pytest.approx(fresh.step(0.95).rejection)
    assert patient.law.memory.admission < 1


def test_a_limit_that_binds_nobody_is_not_raised() -> None:
    """Conditional integration: with little in flight a higher limit could not bring usage up."""
    idle, busy = _Bench(held=0.1), _Bench(held=2.0)
    for _ in range(100):
        idle_state, busy_state = idle.step(0.1), busy.step(0.1)
    assert idle_state.limits[0].tokens == SETPOINT * CAPACITY_TOKENS
    assert busy_state.limits[0].tokens > SETPOINT * CAPACITY_TOKENS


def test_it_steps_every_50_ms_however_often_it_is_asked() -> None:
    bench = _Bench()
    bench.step(0.9)
    memory = bench.law.memory
    for _ in range(4):
        bench.step(0.95, after_s=0.01)
        assert bench.law.memory == memory
    bench.step(0.95, after_s=0.01)
    assert bench.law.memory != memory


def test_after_a_gap_the_old_error_says_nothing_of_speed() -> None:
    bench = _Bench()
    bench.step(0.2)
    state = bench.step(0.9, after_s=RESTART_S + 1)
    assert state.rejection == (0, 0, 0)
    assert bench.law.memory.error == bench.law.memory.error_before


def test_usage_or_capacity_unknown_holds_the_last_word() -> None:
    bench = _Bench()
    bench.step(0.90)
    known = bench.step(0.95)
    unknown = bench.step(None)
    assert (unknown.rejection, unknown.limits, unknown.reason) == (known.rejection, known.limits, "kv-usage-unknown")
    assert bench.step(0.95, capacity=None).limits[0] == UNLIMITED


@pytest.mark.parametrize("overload", [1.5, 3.0, 10.0])
def test_on_a_plant_without_delay_it_settles_at_the_setpoint(overload: float) -> None:
    """d(usage)/dt = (admitted - drained) / capacity, a tenth of the capacity drained per second."""
    drain_per_s = 0.1
    bench = _Bench(gain=overload * drain_per_s)
    usage, last = 0.5, []
    for step in range(8000):
        admitted = 1 - bench.step(usage).rejection[1]
        usage = min(1.0, usage + (admitted * overload - 1) * drain_per_s * PERIOD_S)
        if step >= 7000:
            last.append(usage)
    assert max(last) - min(last) < 0.02
    assert sum(last) / len(last) == pytest.approx(SETPOINT, abs=0.01)
