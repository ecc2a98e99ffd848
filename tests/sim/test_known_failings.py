"""What the classical laws are known to get wrong, each beside the default controllers under the same traffic.

A law that stops failing here has changed, and the README's advice with it. Virtual time, one engine, fixed seeds.
"""

from __future__ import annotations

import pytest

from extproc.config import ControllerName, LatencySignal, PidPolicy, PoolPolicy, VegasPolicy
from extproc.model import Priority
from extproc.sim.engine import EngineSpec
from tests.support.closed_loop import Intent, closed_loop, poisson

P0, P1, P2 = Priority
DEFAULT = PoolPolicy()
WARM_UP_S, UNTIL_S = 10.0, 30.0
FAST_CARD = EngineSpec()
"""Room for 400,000 KV tokens: 18 requests per second are about two thirds of what it can do."""
CALM = poisson(18, UNTIL_S, seed=1)
TEN_TIMES = poisson(140, UNTIL_S, seed=1, mix=(0.05, 0.35, 0.60))
"""At the small engine of the harness, which does about 14 per second. P0 alone is half of its capacity."""


def _vegas(*signals: LatencySignal) -> PoolPolicy:
    names = (ControllerName.VEGAS, ControllerName.WATERMARK)
    return PoolPolicy(controllers=names, vegas=VegasPolicy(signals=signals))


def _pid(policy: PidPolicy) -> PoolPolicy:
    return PoolPolicy(controllers=(ControllerName.PID,), pid=policy)


@pytest.fixture(scope="module")
def calm_goodput() -> float:
    """Of the default controllers, which refuse nobody and miss nothing: there is no overload."""
    run = closed_loop(DEFAULT, CALM, spec=FAST_CARD)
    assert [run.missed(priority, WARM_UP_S) for priority in Priority] == [0, 0, 0]
    assert run.mean_usage(WARM_UP_S, UNTIL_S) < 0.4
    return run.goodput(WARM_UP_S, UNTIL_S)


@pytest.mark.parametrize("samples", [True, False], ids=["gateway samples", "engines' means"])
def test_vegas_on_ttft_collapses_to_about_a_fifth_without_any_overload(calm_goodput: float, *, samples: bool) -> None:
    """TTFT differs a hundredfold with the length of the prompt, and the least ever seen is that of a short one."""
    run = closed_loop(_vegas(LatencySignal.TTFT), CALM, spec=FAST_CARD, samples=samples)
    assert 0.05 < run.goodput(WARM_UP_S, UNTIL_S) / calm_goodput < 0.3
    assert run.mean_slots(WARM_UP_S, UNTIL_S) < 2 * VegasPolicy().min_limit
    assert run.mean_usage(WARM_UP_S, UNTIL_S) < 0.05, "the engine stands idle"


def test_vegas_on_tpot_loses_more_than_half_because_batching_is_slower_per_token_by_nature(calm_goodput: float) -> None:
    run = closed_loop(_vegas(LatencySignal.TPOT), CALM, spec=FAST_CARD)
    assert 0.2 < run.goodput(WARM_UP_S, UNTIL_S) / calm_goodput < 0.6


def test_longer_prompts_look_like_congestion_to_vegas() -> None:
    """One request at a time in an engine that has nothing else to do: 500 tokens of prompt, then 4000."""
    short = [Intent(float(second), P1, 500, 20) for second in range(40)]
    longer = [Intent(40.0 + second, P1, 4000, 20) for second in range(40)]
    run = closed_loop(_vegas(LatencySignal.TTFT), short + longer, spec=FAST_CARD)
    slots = {round(state.at, 1): state.limits[0].slots for state in run.states}
    assert slots[39.9] > 40, "it grew as long as all were alike"
    assert slots[59.9] == VegasPolicy().min_limit
    assert max(run.kv_usage) < 0.02


@pytest.mark.parametrize(("kp", "ki"), [(1.0, 0.3), (2.0, 0.5)], ids=["default gains", "quicker"])
def test_pid_on_probability_alone_misses_p0_targets_at_ten_times_the_load(kp: float, ki: float) -> None:
    """A rejection share acts on newcomers only, and late: what was let in while usage still rose fills the engine, the
    controller swings to the other bound, and P0 pays for both. Shares this large take its tokens in flight out of it."""
    run = closed_loop(_pid(PidPolicy(kp=kp, ki=ki, min_share=10.0, max_share=10.0)), TEN_TIMES)
    assert run.missed(P0, WARM_UP_S) > 0.4
    assert run.preemptions > 20


@pytest.mark.parametrize("pool", [DEFAULT, _pid(PidPolicy())], ids=["default", "pid with tokens in flight"])
def test_a_bound_on_what_is_in_flight_keeps_p0_within_its_targets(pool: PoolPolicy) -> None:
    """The control: the same traffic, and nothing of what the test above shows."""
    run = closed_loop(pool, TEN_TIMES)
    assert run.missed(P0, WARM_UP_S) < 0.05
    assert run.preemptions < 5


def test_the_same_seed_gives_the_same_run() -> None:
    traffic = poisson(20, 5.0, seed=3)
    first, second = (closed_loop(_vegas(*LatencySignal), traffic, settle_s=2.0) for _ in range(2))
    assert first.states == second.states
    assert first.results == second.results
