"""One pool's decision out of its controllers, the failure rules, the override and the reserved slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from extproc.config import (
    ControllerName,
    FailurePolicy,
    FixedPolicy,
    LimitPolicy,
    OverridePolicy,
    PoolPolicy,
    QueuePolicy,
    ShedOrder,
    WatermarkPolicy,
)
from extproc.config.schema import DEFAULT_QUEUES
from extproc.config.section import Seconds
from extproc.controllers.compose import Memory, PoolController, mean_output_tokens
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, Load, PoolState, Priority

START = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
ENGINES = ("a:1", "b:2")
MIX = Demand(offered_per_s=(15, 35, 50), mean_cost=Load(500, 1))


def _classical(**fields: object) -> PoolPolicy:
    """The pair of which tests know what it says."""
    both = (ControllerName.FIXED, ControllerName.WATERMARK)
    return PoolPolicy(controllers=both, **fields)  # type: ignore[arg-type]


class _Bench:
    """A composition stepped by hand, with the engines as given."""

    def __init__(
        self,
        pool: PoolPolicy | None = None,
        *,
        queues: Sequence[QueuePolicy] = DEFAULT_QUEUES,
        failure: FailurePolicy | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.controller = PoolController(
            pool or _classical(), queues=queues, failure=failure or FailurePolicy(), memory=memory or Memory()
        )
        self.state = START
        self.samples: dict[str, EngineSample] = {}
        self.configured: tuple[str, ...] = ENGINES

    def sees(
        self, engine: str, *, at: float, usage: float = 0.5, capacity: int | None = 10_000, waiting: int = 0
    ) -> None:
        self.samples[engine] = EngineSample(
            engine=engine, at=at, kv_usage=usage, kv_capacity_tokens=capacity, waiting=waiting, running=1
        )

    def step(self, now: float, demand: Demand = MIX) -> PoolState:
        fleet = Fleet(configured=self.configured, samples=dict(self.samples))
        self.state = self.controller.step(now, fleet, demand=demand, previous=self.state)
        return self.state


def _requests(n: int) -> FixedPolicy:
    return FixedPolicy(limit=LimitPolicy(requests=n))


def test_auto_is_theta_of_what_the_reporting_engines_hold() -> None:
    bench = _Bench()
    bench.sees("a:1", at=0)
    bench.sees("b:2", at=0, capacity=30_000)
    state = bench.step(0)
    assert state.limits[0] == Load(32_000, 512)
    assert state.rejection == (0, 0, 0)
    assert state.engines_reporting == 2
    assert state.engine_max_tokens == 30_000
    assert state.reason == "auto"


def test_a_lost_engine_takes_its_capacity_with_it_at_once() -> None:
    bench = _Bench()
    bench.sees("a:1", at=0)
    bench.sees("b:2", at=0)
    bench.step(0)
    bench.sees("a:1", at=1.05)
    assert bench.step(1.05).limits[0].tokens == 8_000
    assert bench.state.rejection == (0, 0, 0)


def test_limits_take_the_minimum_and_the_reason_names_what_binds() -> None:
    bench = _Bench(_classical(fixed=_requests(64)))
    bench.sees("a:1", at=0, usage=0.86)
    state = bench.step(0)
    assert state.limits[0] == Load(math.inf, 64)
    assert state.rejection == pytest.approx((0, 0, 1))
    assert state.reason == "fixed+kv-high"


def test_blind_refuses_half_and_halves_the_last_good_tokens_of_all_but_p0() -> None:
    bench = _Bench()
    bench.sees("a:1", at=0)
    bench.sees("b:2", at=0)
    bench.step(0)
    state = bench.step(2)
    assert state.limits == (Load(16_000, 512), Load(8_000, 512), Load(8_000, 512))
    assert state.rejection == (0, 0, 1)
    assert state.engines_reporting == 0
    assert state.engine_max_tokens == 10_000
    assert state.saturation >= state.pressure_at
    assert state.reason == "engines-silent"
    assert bench.step(600).limits == state.limits, "stays, and is not halved again"


def test_blindness_that_comes_engine_by_engine_still_leaves_half() -> None:
    """Samples of engines lost together expire one after the other; what the last of them held is not the last good."""
    bench = _Bench()
    bench.sees("a:1", at=0)
    bench.sees("b:2", at=0.08)
    bench.step(0.1)
    assert bench.step(1.05).limits[1].tokens == 8_000
    assert bench.step(1.15).limits[1].tokens == 8_000
    assert bench.state.reason == "engines-silent"


def test_an_engine_gone_for_long_no_longer_counts_as_last_good() -> None:
    bench = _Bench()
    bench.sees("a:1", at=0)
    bench.sees("b:2", at=0)
    bench.step(0)
    for now in range(1, 20):
        bench.sees("a:1", at=now)
        bench.step(now)
    assert bench.step(30).limits[1].tokens == 4_000


def test_blind_with_a_limit_in_requests_halves_that() -> None:
    bench = _Bench(_classical(fixed=_requests(64)))
    assert [limit.slots for limit in bench.step(0).limits] == [64, 64, 64]
    assert [limit.slots for limit in bench.step(5).limits] == [64, 32, 32]


def test_blind_never_closes_a_pool_of_one_slot() -> None:
    bench = _Bench(_classical(fixed=_requests(1)))
    bench.step(0)
    assert [limit.slots for limit in bench.step(5).limits] == [1, 1, 1]


def test_capacity_never_seen_means_the_unknown_limit() -> None:
    bench = _Bench(failure=FailurePolicy(unknown_limit=LimitPolicy(requests=7)))
    assert bench.step(0).limits[0].slots == 7
    assert bench.state.rejection == (0, 0, 0), "engines not asked yet are no outage"
    assert bench.state.reason == "starting"
    assert bench.step(1.5).limits[0].slots == 7
    assert bench.state.rejection == (0, 0, 1)


def test_engines_that_do_not_tell_their_capacity_get_the_unknown_limit_too() -> None:
    bench = _Bench()
    bench.sees("a:1", at=0, capacity=None)
    state = bench.step(0)
    assert state.limits[0] == Load(math.inf, 32)
    assert "capacity-unknown" in state.reason
    assert state.rejection == (0, 0, 0)


def test_the_default_when_blind_goes_on_at_the_last_pace_with_p0s_limit_whole() -> None:
    """It leant, while a line stood in an engine: but that is over by the time that nobody sees any."""
    bench = _Bench(PoolPolicy())
    bench.sees("a:1", at=0, waiting=100)
    seen = bench.step(0)
    assert seen.pace is not None
    assert seen.pace.lean < 1
    state = bench.step(2)
    p0, below = seen.limits[0], Load(seen.limits[1].tokens / 2, seen.limits[1].slots)
    assert state.limits == (p0, below, below)
    assert (state.rejection, state.reason, state.pace) == ((0, 0, 1), "engines-silent", seen.pace.upright())
    assert state.saturation >= state.pressure_at


@pytest.mark.parametrize(
    ("configured", "reason"), [(ENGINES, "capacity-unknown"), ((), "no-engines")], ids=["no capacity", "no engines"]
)
def test_the_default_knows_no_capacity_and_takes_the_unknown_limit(configured: tuple[str, ...], reason: str) -> None:
    bench = _Bench(PoolPolicy())
    bench.configured = configured
    bench.sees("a:1", at=0, capacity=None)
    state = bench.step(0)
    assert state.limits == (Load(math.inf, 32),) * 3
    assert (state.rejection, state.pace) == ((0, 0, 0), None)
    assert reason in state.reason


def test_a_limit_in_numbers_beside_the_default_binds() -> None:
    bench = _Bench(PoolPolicy(controllers=(ControllerName.FIXED, ControllerName.FUSED), fixed=_requests(4)))
    bench.sees("a:1", at=0)
    assert bench.step(0).limits[0].slots == 4
    assert bench.state.pace is not None


def test_watermark_alone_when_blind_is_bounded_by_the_capacity_it_saw() -> None:
    bench = _Bench(PoolPolicy(controllers=(ControllerName.WATERMARK,)))
    bench.sees("a:1", at=0)
    assert bench.step(0).limits[0] == UNLIMITED
    assert bench.step(5).limits == (Load(10_000, math.inf), Load(5_000, math.inf), Load(5_000, math.inf))


def test_no_engines_configured() -> None:
    bench = _Bench()
    bench.configured = ()
    assert bench.step(100).limits[0] == Load(math.inf, 32)
    assert bench.state.rejection == (0, 0, 0)
    bench = _Bench(_classical(fixed=_requests(4)))
    bench.configured = ()
    assert bench.step(100).limits[0] == Load(math.inf, 4)
    assert bench.state.reason == "no-engines"


def test_a_frozen_engine_counts_as_silent() -> None:
    bench = _Bench()
    bench.samples["a:1"] = EngineSample(engine="a:1", at=0, kv_usage=0.1, kv_capacity_tokens=10, frozen=True)
    bench.step(0)
    assert bench.state.engines_reporting == 0


def test_the_override_beats_controllers_and_failure_rules() -> None:
    override = OverridePolicy(limit=LimitPolicy(requests=10), rejection=0.0)
    bench = _Bench(_classical(override=override))
    bench.sees("a:1", at=0, usage=0.99)
    assert bench.step(0).limits[0] == Load(math.inf, 10)
    assert bench.state.rejection == (0, 0, 0)
    bench.step(10)
    assert bench.state.limits[0] == Load(math.inf, 10)
    assert bench.state.rejection == (0, 0, 0)
    assert bench.state.reason == "engines-silent+override"


def test_an_override_of_the_limit_lets_no_pace_hold_anybody_back() -> None:
    bench = _Bench(PoolPolicy(override=OverridePolicy(limit=LimitPolicy(requests=10))))
    bench.sees("a:1", at=0)
    assert bench.step(0).limits[0] == Load(math.inf, 10)
    assert bench.state.pace is None


def _queues(*slots: int) -> tuple[QueuePolicy, ...]:
    return tuple(
        QueuePolicy(priority=priority, name=str(priority), max_queue_size=1, timeout_s=Seconds(1), reserved_slots=n)
        for priority, n in zip(Priority, slots, strict=True)
    )


def test_reserved_slots_add_up_downwards() -> None:
    bench = _Bench(_classical(fixed=_requests(20)), queues=_queues(4, 2, 0))
    bench.sees("a:1", at=0)
    assert [load.slots for load in bench.step(0).reserved] == [4, 6, 6]
    assert bench.state.reserved[0].tokens == 0, "a limit in requests leaves tokens alone"


def test_reserved_slots_in_a_pool_of_tokens_are_mean_requests_as_last_known() -> None:
    bench = _Bench(queues=_queues(4, 0, 0))
    bench.sees("a:1", at=0)
    assert bench.step(0).reserved[0] == Load(2_000, 4)
    assert bench.step(0.5, Demand()).reserved[0] == Load(2_000, 4)


def test_reserved_slots_never_exceed_the_limit() -> None:
    bench = _Bench(_classical(fixed=_requests(3)), queues=_queues(4, 2, 0))
    bench.sees("a:1", at=0)
    assert bench.step(0).reserved[1].slots == 3


def test_expected_output_is_weighted_by_requests_and_remembered() -> None:
    fast = EngineSample(engine="a:1", at=0, mean_output_tokens=100, generation_tokens_per_s=900)
    slow = EngineSample(engine="b:2", at=0, mean_output_tokens=500, generation_tokens_per_s=500)
    assert mean_output_tokens((fast, slow)) == pytest.approx(1400 / 10)
    bench = _Bench()
    bench.samples = {"a:1": fast, "b:2": slow}
    assert bench.step(0).expected_output_tokens == pytest.approx(140)
    assert bench.step(10).expected_output_tokens == pytest.approx(140)
    assert mean_output_tokens((EngineSample(engine="x", at=0),)) is None


def test_time_to_first_token_is_of_engines_that_had_some_lately_and_is_forgotten_with_them() -> None:
    bench = _Bench()
    bench.samples = {"a:1": EngineSample(engine="a:1", at=0, ttft_mean_s=2.0), "b:2": EngineSample(engine="b:2", at=0)}
    assert bench.step(0).expected_ttft_s == 2.0
    bench.samples["b:2"] = EngineSample(engine="b:2", at=0, ttft_mean_s=1.0)
    assert bench.step(0).expected_ttft_s == 1.5
    assert bench.step(10).expected_ttft_s is None


def test_memory_survives_a_reload() -> None:
    old = _Bench()
    old.sees("a:1", at=0)
    old.step(0)
    assert _Bench(memory=old.controller.memory).step(10).limits[1].tokens == 4_000


def test_uniform_shedding_becomes_lowest_first_while_blind() -> None:
    bench = _Bench(_classical(watermark=WatermarkPolicy(shed=ShedOrder.UNIFORM)))
    bench.step(0)
    assert bench.step(5).rejection == (0, 0, 1)


def test_where_fused_is_in_charge_a_full_pool_is_no_pressure() -> None:
    assert _Bench(PoolPolicy(controllers=(ControllerName.FUSED,))).step(0).pressure_at == 1.0
    assert _Bench().step(0).pressure_at == WatermarkPolicy().high
