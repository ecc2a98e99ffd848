"""What the classical laws are known to get wrong, each beside one that does not, under the same traffic.

A law that stops failing here has changed, and the README's advice with it. The laws are at their defaults, as people meet
them; tuned, some of them fail less. Virtual time, fixed seeds.
"""

from __future__ import annotations

import pytest

from extproc.config import ControllerName, OverridePolicy, PidPolicy, PoolPolicy
from extproc.model import Priority
from extproc.sim.world.run import Cell, Result, run_scenario
from extproc.sim.world.setup import Setup
from extproc.sim.world.setups import untuned
from tests.support.closed_loop import closed_loop, poisson

P0 = Priority.P0
DEFAULT = Setup("default")
"""Of a policy that does not speak of controllers."""


def sweep(setup: Setup, rho: float) -> Result:
    """Constant load of `rho` times the capacity on two engines for 40 s."""
    return run_scenario(Cell("sweep", rho, 1024, 1), setup)


def test_without_overload_the_default_refuses_nobody_and_misses_nothing() -> None:
    result = sweep(DEFAULT, 0.8)
    assert result.efficiency > 0.97
    assert (result.p0_miss, result.idle_refusing) == (0, 0)


@pytest.mark.parametrize("signal", ["ttft", "tpot"])
def test_vegas_leaves_the_engines_idle_without_any_overload(signal: str) -> None:
    """TTFT differs a hundredfold with the length of the prompt, a token takes longer in a batch by nature, and the least
    ever seen is that of a short prompt in an idle engine."""
    result = sweep(Setup("vegas", pool={"controllers": ["vegas"], "vegas": {"signals": [signal]}}), 0.8)
    assert result.efficiency < 0.3
    assert result.idle_refusing > 0.7


def test_a_gate_misses_p0_together_with_the_rest() -> None:
    """While it is open everybody passes, and what it sees is as old as a scrape: the engines' queues fill, first come."""
    gate, default = (sweep(setup, 1.5) for setup in (untuned("gate"), DEFAULT))
    assert gate.p0_miss is not None
    assert gate.p0_miss > 1 / 3
    assert default.p0_miss is not None
    assert default.p0_miss < 0.02
    assert default.efficiency > 0.95


TEN_TIMES = poisson(140, 30.0, seed=1, mix=(0.05, 0.35, 0.60))
"""At an engine with a small cache, which does about 14 per second. P0 alone is half of its capacity."""
WARM_UP_S = 10.0


def _pid(policy: PidPolicy) -> PoolPolicy:
    return PoolPolicy(controllers=(ControllerName.PID,), pid=policy)


@pytest.mark.parametrize(("kp", "ki"), [(1.0, 0.3), (2.0, 0.5)], ids=["default gains", "quicker"])
def test_pid_on_probability_alone_misses_p0_targets_at_ten_times_the_load(kp: float, ki: float) -> None:
    """A rejection share acts on newcomers only, and late: what was let in while usage still rose fills the engine, the
    controller swings to the other bound, and P0 pays for both. Shares this large take its tokens in flight out of it."""
    run = closed_loop(_pid(PidPolicy(kp=kp, ki=ki, min_share=10.0, max_share=10.0)), TEN_TIMES)
    assert run.missed(P0, WARM_UP_S) > 0.4
    assert run.preemptions > 20


@pytest.mark.parametrize("pool", [PoolPolicy(), _pid(PidPolicy())], ids=["default", "pid with tokens in flight"])
def test_a_bound_on_what_is_in_flight_keeps_p0_within_its_targets(pool: PoolPolicy) -> None:
    """The control: the same traffic, and nothing of what the test above shows."""
    run = closed_loop(pool, TEN_TIMES)
    assert run.missed(P0, WARM_UP_S) < 0.05
    assert run.preemptions < 5


def test_half_refused_of_ten_times_the_load_is_five_times_too_much() -> None:
    """What the watermark law says while it is blind, with nothing else that bounds what is in the engine."""
    run = closed_loop(PoolPolicy(controllers=(), override=OverridePolicy(rejection=0.5)), TEN_TIMES)
    assert run.missed(P0, WARM_UP_S) > 0.9
