"""The law `vegas`, step by step."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest

from extproc.config import ControllerName, FailurePolicy, LatencySignal, PoolPolicy, VegasPolicy
from extproc.config.schema import DEFAULT_QUEUES
from extproc.controllers.compose import PoolController
from extproc.controllers.vegas import SAMPLED_FOR_S, Vegas
from extproc.fleet import EngineSample, Fleet
from extproc.model import UNLIMITED, Demand, Latency, Load, PoolState
from extproc.sim.engine_spec import EngineSpec

START = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED), pressure_at=0.7)
TTFT, TPOT = LatencySignal.TTFT, LatencySignal.TPOT


def _vegas(min_limit: int = 10, max_limit: int = 1000, signals: tuple[LatencySignal, ...] = (TTFT,)) -> Vegas:
    return Vegas(VegasPolicy(min_limit=min_limit, max_limit=max_limit, signals=signals), FailurePolicy())


def _fleet(now: float, ttft_s: float | None, *more: float) -> Fleet:
    """Engines a, b, ... that state these mean TTFTs at `now`."""
    means = dict(zip("abcd", (ttft_s, *more), strict=False))
    samples = {name: EngineSample(engine=name, at=now, ttft_mean_s=mean) for name, mean in means.items()}
    return Fleet(configured=tuple(samples), samples=MappingProxyType(samples))


def _finish(law: Vegas, *ttft_s: float | None, now: float = 0.0, fleet: Fleet | None = None) -> float:
    """One step in which these requests finished; the limit after it."""
    demand = Demand(latencies=tuple(Latency(9.0, ttft_s=one) for one in ttft_s))
    return law.step(now, fleet or Fleet(), demand=demand, previous=START).limits[0].slots


def test_it_starts_at_the_least_limit_and_says_nothing_else() -> None:
    state = _vegas().step(3.0, Fleet(), demand=Demand(), previous=START)
    assert state.limits == (Load(math.inf, 10),) * 3
    assert (state.rejection, state.saturation, state.pressure_at, state.at) == ((0, 0, 0), 0, 0.7, 3.0)
    assert state.reason == "vegas-ttft"


def test_the_first_latency_is_base_and_mean_and_lets_the_limit_grow() -> None:
    law = _vegas()
    assert _finish(law, 0.2) == 11
    seen = law.memory.tracks[TTFT].gateway
    assert seen is not None
    assert (seen.base_s, seen.ewma_s) == (0.2, 0.2)


@pytest.mark.parametrize(
    ("second_s", "limit"),
    [
        (1.0, 12),
        (1.49, 12),  # ewma 1.098: delay 0.098 < threshold 0.1
        (1.51, 11),  # ewma 1.102: between threshold and threshold x 1.2
        (1.59, 11),  # ewma 1.118
        (1.61, 8),  # ewma 1.122: delay > 0.12, 11 x 0.8 = 8.8, floor
        (0.5, 8),  # a new base: ewma 0.9 is 0.4 above it
    ],
)
def test_a_second_latency_after_one_of_a_second(second_s: float, limit: int) -> None:
    law = _vegas(min_limit=1)
    assert _finish(law, *[1.0] * 10) == 11
    assert _finish(law, second_s) == limit


def test_several_finished_requests_of_one_step_are_as_many_steps_in_order() -> None:
    one_by_one, together = _vegas(), _vegas()
    latencies = (0.3, 0.2, 0.9, 0.25, 0.2, 0.2)
    for latency in latencies:
        _finish(one_by_one, latency)
    _finish(together, *latencies)
    assert together.memory == one_by_one.memory


def test_longer_prompts_look_like_congestion_in_an_engine_that_has_nothing_else_to_do() -> None:
    """Known failing of the law: time to the first token is first of all the prompt's length."""
    engine, law = EngineSpec(), _vegas()
    assert _finish(law, *[engine.step_base_s + 500 * engine.prefill_token_s] * 40) == 50, "it grows while all are alike"
    assert _finish(law, *[4 * engine.step_base_s + 4000 * engine.prefill_token_s] * 20) == 10


def test_it_stays_within_its_bounds() -> None:
    law = _vegas(min_limit=10, max_limit=12)
    assert _finish(law, *[0.2] * 50) == 12
    assert _finish(law, *[9.0] * 50) == 10


def test_the_tighter_signal_wins_and_is_named() -> None:
    law = _vegas(signals=(TTFT, TPOT))
    calm = Demand(latencies=(Latency(9.0, ttft_s=0.2, tpot_s=0.01),) * 20)
    assert law.step(0.0, Fleet(), demand=calm, previous=START).limits[0].slots == 30
    slower = Demand(latencies=(Latency(9.0, ttft_s=0.2, tpot_s=0.05),))
    state = law.step(0.1, Fleet(), demand=slower, previous=START)
    assert state.limits[0].slots == 24
    assert state.reason == "vegas-tpot"


def test_what_was_not_measured_or_cannot_be_moves_nothing() -> None:
    law = _vegas()
    assert _finish(law, None, 0.0, math.inf, math.nan, -1.0) == 10
    assert law.memory.tracks[TTFT].gateway is None


def test_engines_means_step_once_per_new_sample_in_which_something_finished() -> None:
    law = _vegas()
    assert _finish(law, fleet=_fleet(0.0, 0.2)) == 10, "nothing finished"
    assert _finish(law, None, None, fleet=_fleet(0.0, 0.2, 0.4)) == 11
    assert _finish(law, None, fleet=_fleet(0.0, 0.2, 0.4)) == 11, "the same report"
    assert _finish(law, None, now=0.1, fleet=_fleet(0.1, 0.2, 0.4)) == 12
    seen = law.memory.tracks[TTFT].engines
    assert seen is not None
    assert seen.base_s == pytest.approx(0.3)


def test_the_gateways_samples_come_first_and_are_not_compared_with_the_engines() -> None:
    law = _vegas()
    _finish(law, 0.2)
    assert _finish(law, None, now=1.0, fleet=_fleet(1.0, 0.1)) == 11, "sampled lately"
    later = 1.0 + SAMPLED_FOR_S
    assert _finish(law, None, now=later, fleet=_fleet(later, 0.1)) == 12
    assert _finish(law, 0.2, now=later + 1) == 13, "the engines' smaller base is theirs alone"


def test_engines_that_do_not_state_a_mean_or_are_stale_do_not_count() -> None:
    law = _vegas()
    assert _finish(law, None, fleet=_fleet(0.0, None)) == 10
    assert _finish(law, None, now=5.0, fleet=_fleet(0.0, 0.2)) == 10


def test_the_limit_survives_a_reload_within_the_new_bounds() -> None:
    law = _vegas()
    _finish(law, *[0.2] * 40)
    successor = Vegas(VegasPolicy(max_limit=20, signals=(TTFT,)), FailurePolicy(), law.memory)
    assert _finish(successor) == 20


def test_a_composition_hands_the_laws_memory_on() -> None:
    pool = PoolPolicy(controllers=(ControllerName.VEGAS, ControllerName.PID))
    first = PoolController(pool, queues=DEFAULT_QUEUES, failure=FailurePolicy())
    demand = Demand(latencies=(Latency(9.0, ttft_s=0.2, tpot_s=0.01),) * 7)
    before = first.step(0.0, Fleet(), demand=demand, previous=START)
    assert before.limits[0].slots == 17
    second = PoolController(pool, queues=DEFAULT_QUEUES, failure=FailurePolicy(), memory=first.memory)
    assert second.step(0.1, Fleet(), demand=Demand(), previous=before).limits[0].slots == 17
    assert second.memory.laws == first.memory.laws
