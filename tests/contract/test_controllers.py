"""What every controller must keep, whatever the engines and the traffic say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config import (
    ControllerName,
    FailurePolicy,
    FixedPolicy,
    FusedPolicy,
    LatencySignal,
    LimitPolicy,
    OverridePolicy,
    PidPolicy,
    PoolPolicy,
    QueuePolicy,
    ShedOrder,
    VegasPolicy,
    WatermarkPolicy,
)
from extproc.config.schema import DEFAULT_QUEUES
from extproc.config.section import Seconds
from extproc.controllers.compose import PoolController
from extproc.controllers.fixed import Fixed
from extproc.controllers.fused import Fused
from extproc.controllers.pid import Pid
from extproc.controllers.protocol import Controller
from extproc.controllers.vegas import Vegas
from extproc.controllers.watermark import Watermark
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, Latency, Load, PoolState, Priority

FAILURE = FailurePolicy()


def _pool(*names: ControllerName, **fields: object) -> Callable[[], Controller]:
    pool = PoolPolicy(controllers=names, **fields)  # type: ignore[arg-type]
    queues = (
        QueuePolicy(priority=Priority.P0, name="a", max_queue_size=1, timeout_s=Seconds(1), reserved_slots=4),
        QueuePolicy(priority=Priority.P1, name="b", max_queue_size=1, timeout_s=Seconds(1), reserved_slots=2),
        DEFAULT_QUEUES[2],
    )
    return lambda: PoolController(pool, queues=queues, failure=FAILURE)


BOTH = (ControllerName.FIXED, ControllerName.WATERMARK)
EVERY: dict[str, Callable[[], Controller]] = {
    "fixed auto": lambda: Fixed(FixedPolicy(), FAILURE),
    "fixed requests": lambda: Fixed(FixedPolicy(limit=LimitPolicy(requests=4)), FAILURE),
    "watermark": lambda: Watermark(WatermarkPolicy(), FAILURE),
    "watermark uniform": lambda: Watermark(WatermarkPolicy(shed=ShedOrder.UNIFORM), FAILURE),
    "vegas": lambda: Vegas(VegasPolicy(), FAILURE),
    "vegas tpot only": lambda: Vegas(VegasPolicy(signals=(LatencySignal.TPOT,), min_limit=1, max_limit=3), FAILURE),
    "pid": lambda: Pid(PidPolicy(), FAILURE),
    "pid with every term": lambda: Pid(PidPolicy(kp=100, ki=100, kd=100, shed=ShedOrder.UNIFORM), FAILURE),
    "fused": lambda: Fused(PoolPolicy(), FAILURE),
    "fused at its bounds": lambda: Fused(PoolPolicy(fused=FusedPolicy(headroom=0.5, backlog_s=Seconds(1e-6))), FAILURE),
    "composed": _pool(*BOTH),
    "composed fused only": _pool(ControllerName.FUSED),
    "composed vegas and watermark": _pool(ControllerName.VEGAS, ControllerName.WATERMARK),
    "composed pid only": _pool(ControllerName.PID),
    "composed of all": _pool(*ControllerName),
    "composed fixed tokens": _pool(*BOTH, fixed=FixedPolicy(limit=LimitPolicy(tokens=1000))),
    "composed watermark only": _pool(ControllerName.WATERMARK),
    "composed override": _pool(*BOTH, override=OverridePolicy(limit=LimitPolicy(requests=0), rejection=1.0)),
}

ENGINES = ("a:1", "b:2", "c:3")
History = Sequence[tuple[float, tuple[str, ...], Sequence[EngineSample], Demand]]
shares = st.floats(0, 1)
rates = st.floats(0, 1e6)
loads = st.builds(Load, rates, rates)


AGES_S = (0.0, 0.5, 0.99, 1.01, 60.0)
GAPS_S = (0.0, 0.05, 0.9, 1.5, 100.0)
LATENCIES_S = (0.0, 1e-9, 0.02, 0.3, 1e9)
samples = st.builds(
    EngineSample,
    engine=st.sampled_from(ENGINES),
    at=st.sampled_from(AGES_S).map(lambda age_s: -age_s),
    kv_usage=st.none() | shares,
    kv_capacity_tokens=st.none() | st.integers(0, 1 << 40),
    waiting=st.none() | st.sampled_from((0, 1, 20, 21, 1 << 20)),
    iteration_s=st.none() | st.sampled_from((1e-9, 0.02, 0.3, 1e9)),
    generation_tokens_per_s=st.none() | rates,
    mean_output_tokens=st.none() | rates,
    ttft_mean_s=st.none() | st.sampled_from(LATENCIES_S),
    tpot_mean_s=st.none() | st.sampled_from(LATENCIES_S),
    frozen=st.booleans(),
)
maybe_s = st.none() | st.sampled_from(LATENCIES_S)
latencies = st.builds(Latency, duration_s=st.sampled_from(LATENCIES_S), ttft_s=maybe_s, tpot_s=maybe_s)
demands = st.builds(
    Demand,
    offered_per_s=st.tuples(rates, rates, rates),
    in_use=st.tuples(loads, loads, loads),
    waiting=st.tuples(loads, loads, loads),
    mean_cost=loads,
    latencies=st.lists(latencies, max_size=4).map(tuple),
)
configurations = st.sampled_from([(), ENGINES[:1], ENGINES])
moments = st.tuples(st.sampled_from(GAPS_S), configurations, st.lists(samples, max_size=3), demands)
histories = st.lists(moments, min_size=1, max_size=4)
"""Moments one after the other: seconds since the last, engines configured, samples (`at` relative to now), traffic."""


def _answers(controller: Controller, history: History) -> list[tuple[Fleet, PoolState]]:
    state = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
    now = 1000.0
    answers = []
    for gap_s, configured, relative, demand in history:
        now += gap_s
        seen = {sample.engine: replace(sample, at=now + sample.at) for sample in relative}
        fleet = Fleet(configured=configured, samples=MappingProxyType(seen))
        state = controller.step(now, fleet, demand=demand, previous=state)
        assert state.at == now
        assert state.engines_reporting == len(fleet.reporting(now, FAILURE.stale_after_s))
        answers.append((fleet, state))
    return answers


def assert_valid(state: PoolState) -> None:
    numbers = [x for load in (*state.limits, *state.reserved) for x in (load.tokens, load.slots)]
    assert all(number >= 0 for number in numbers), state  # also false for NaN
    for higher, lower in zip(state.limits, state.limits[1:], strict=False):
        assert lower.fits(higher), state
    for higher, lower in zip(state.reserved, (*state.reserved[1:], state.limits[0]), strict=True):
        assert higher.fits(lower), state
    assert all(0.0 <= rate <= 1.0 for rate in state.rejection), state
    assert list(state.rejection) == sorted(state.rejection), state
    assert 0.0 <= state.saturation <= 1.0, state
    assert state.expected_output_tokens is None or 0 <= state.expected_output_tokens < math.inf, state
    if state.pace is not None:
        assert 0 < state.pace.tokens_per_s < math.inf, state
        assert all(0 < depth < math.inf for depth in state.pace.depths), state
        assert list(state.pace.depths) == sorted(state.pace.depths, reverse=True), state
    assert state.reason


@pytest.mark.parametrize("name", EVERY)
def test_a_plain_history_is_answered_validly(name: str) -> None:
    """Also without luck: an engine appears, fills up, falls silent and returns."""
    usages = (None, 0.2, 0.85, 0.95, None, None, 0.5)
    demand = Demand(offered_per_s=(1, 2, 3), mean_cost=Load(500, 1))
    seen = [[EngineSample(engine="a:1", at=0, kv_usage=u, kv_capacity_tokens=4096)] if u else [] for u in usages]
    for _, state in _answers(EVERY[name](), [(1.0, ENGINES, samples, demand) for samples in seen]):
        assert_valid(state)


@settings(max_examples=100, deadline=None)
@given(history=histories)
def test_answers_are_valid_and_repeatable_whatever_comes_in(history: History) -> None:
    for make in EVERY.values():
        answers = _answers(make(), history)
        for _, state in answers:
            assert_valid(state)
        assert _answers(make(), history) == answers
