"""The law `fused`, part by part. What it does to engines is in `tests/sim`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec import structs

from extproc.config import FailurePolicy, FusedPolicy, PoolPolicy
from extproc.config.section import Seconds
from extproc.controllers.fused import (
    BIAS_RISES_S,
    BRAKES,
    DEPTHS,
    FILLS_S,
    FIRST_PACE,
    LEANS,
    LEAST_LEAN,
    PERIOD_S,
    SEEKS_PER_S,
    Fused,
)
from extproc.fleet import EngineSample, Fleet
from extproc.model import NOTHING, PRIORITIES, UNLIMITED, Demand, Load, PoolState

START = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
CAPACITY = 64_000
POLICY = FusedPolicy(theta=0.9, headroom=0.1, sequences_per_engine=100, backlog_s=Seconds(0.2), tpot_share=0.5)
STEP_S = 0.03
"""Half of the 60 ms that a pool has as target where it says none."""
ONE_S = round(1 / PERIOD_S)


class _Bench:
    """The law stepped by hand, over engines of one size. Requests of 100 prompt tokens, as many expected in the answer."""

    def __init__(self) -> None:
        self.law = Fused(PoolPolicy(fused=POLICY), FailurePolicy())
        self.now = 0.0
        self.state = structs.replace(START, expected_output_tokens=100.0)
        self.demand = Demand(mean_cost=Load(200, 1))

    def holds(self, tokens: float, slots: float = 1.0, waiting: float = 0.0, *, paced: bool = False) -> None:
        waits = NOTHING if not waiting else Load(200 * waiting, waiting)
        in_use, all_wait = (NOTHING, Load(tokens, slots), NOTHING), (NOTHING, NOTHING, waits)
        self.demand = structs.replace(self.demand, in_use=in_use, waiting=all_wait, paced=paced)

    def step(
        self,
        times: int = 1,
        *,
        usage: Sequence[float | None] = (0.1,),
        lines: Sequence[int] | None = None,
        running: Sequence[int] | None = None,
        step_s: float | None = None,
    ) -> PoolState:
        for _ in range(times):
            self.now += PERIOD_S
            samples = {
                f"e:{i}": EngineSample(
                    f"e:{i}",
                    at=self.now,
                    kv_usage=share,
                    kv_capacity_tokens=CAPACITY,
                    running=running[i] if running else None,
                    waiting=lines[i] if lines else 0,
                    iteration_s=step_s,
                )
                for i, share in enumerate(usage)
            }
            fleet = Fleet(configured=tuple(samples), samples=MappingProxyType(samples))
            self.state = self.law.step(self.now, fleet, demand=self.demand, previous=self.state)
            self.state = structs.replace(self.state, expected_output_tokens=100.0)
        return self.state

    @property
    def rate(self) -> float:
        """Prompt tokens per second that the whole pool lets in."""
        assert self.state.pace is not None
        return self.state.pace.let_in_per_s


def test_it_starts_with_its_share_of_tokens_and_sequences_and_leaves_p0_its_headroom() -> None:
    state = _Bench().step(usage=(0.0, 0.0))
    whole, below, lowest = state.limits
    assert whole == Load(0.9 * 2 * CAPACITY, 200)
    assert below == lowest == whole.scaled(0.9)
    assert state.rejection == (0, 0, 0)
    assert (state.reason, state.engines_reporting) == ("fused", 2)


def test_the_first_pace_fills_the_caches_in_a_given_time_and_a_lost_engine_takes_its_part() -> None:
    bench = _Bench()
    bench.step(usage=(0.1, 0.1))
    assert bench.rate == pytest.approx(2 * CAPACITY / FILLS_S)
    bench.step(usage=(0.1,))
    assert bench.rate == pytest.approx(CAPACITY / FILLS_S)
    assert bench.state.pace is not None
    assert list(bench.state.pace.depths) == pytest.approx([bench.rate * 0.2 * depth for depth in DEPTHS])


def test_p0_takes_the_place_of_what_ends_in_an_engine_whose_page_is_silent() -> None:
    bench = _Bench()
    bench.holds(0, slots=200)
    bench.step(usage=(0.1, 0.1))
    state = bench.step(usage=(0.1,))
    assert [limit.slots for limit in state.limits] == [pytest.approx(2 * 100, rel=0.01), 90, 90]
    bench.holds(0, slots=150)
    assert bench.step(usage=(0.1,)).limits[0].slots == pytest.approx(160), "what has ended is not P0's for ever"
    assert bench.step(60 * ONE_S, usage=(0.1,)).limits[0].slots == 100


def test_p0_gets_nothing_of_an_engine_whose_requests_have_ended_with_it() -> None:
    bench = _Bench()
    bench.holds(0, slots=200)
    bench.step(usage=(0.1, 0.1))
    bench.holds(0, slots=90)
    assert bench.step(usage=(0.1,)).limits[0].slots == 100


def test_a_card_with_little_left_for_a_cache_prefills_as_fast_as_another() -> None:
    law = Fused(PoolPolicy(fused=POLICY), FailurePolicy())
    sample = EngineSample("e:0", at=0.0, kv_usage=0.0, kv_capacity_tokens=8000)
    state = law.step(0.0, Fleet(("e:0",), {"e:0": sample}), demand=Demand(), previous=START)
    assert state.pace is not None
    assert state.pace.tokens_per_s == pytest.approx(FIRST_PACE)


def test_without_a_capacity_it_says_nothing() -> None:
    law = Fused(PoolPolicy(fused=POLICY), FailurePolicy())
    fleet = Fleet(("e:0",), {"e:0": EngineSample("e:0", at=0.0, kv_usage=0.5)})
    state = law.step(0.0, fleet, demand=Demand(), previous=START)
    assert (state.limits, state.pace, state.reason) == (START.limits, None, "capacity-unknown")


def test_the_fullest_engine_tells_what_a_counted_token_takes() -> None:
    """Of 64,000 counted tokens in two engines one holds 0.6 of its cache: at that, all would hold 76,800."""
    bench = _Bench()
    bench.holds(64_000)
    bench.step(10 * ONE_S, usage=(0.4, 0.6))
    assert bench.law.memory.bias == pytest.approx(1.2, rel=1e-3)
    assert bench.state.limits[0].tokens == pytest.approx(0.9 * 2 * CAPACITY / 1.2, rel=1e-3)


def test_it_believes_bad_news_sooner_than_good() -> None:
    bench = _Bench()
    bench.holds(32_000)
    bench.step(ONE_S, usage=(0.75,))
    risen = bench.law.memory.bias - 1
    assert risen == pytest.approx(0.5 * (1 - (1 - PERIOD_S / BIAS_RISES_S) ** ONE_S), rel=0.1)
    bench.step(ONE_S, usage=(0.25,))
    assert bench.law.memory.bias > 1 + 0.8 * risen


def test_the_last_of_a_crowd_teach_nothing() -> None:
    """They are the longest, of which the cache holds more than was expected."""
    bench = _Bench()
    bench.holds(4000)
    bench.step(10 * ONE_S, usage=(0.09,))
    assert bench.law.memory.bias == 1


def test_what_nobody_counted_leaves_less_room() -> None:
    """Half of the cache is full of what was sent before a restart, or by others."""
    state = _Bench().step(usage=(0.4, 0.6))
    assert state.limits[0] == Load((0.9 - 0.5) * 2 * CAPACITY, 200)
    assert _Bench().step(usage=(0.95,)).limits[0].tokens == 0


def test_engines_show_for_a_while_what_has_ended_here_already() -> None:
    bench = _Bench()
    bench.holds(48_000)
    bench.step(usage=(0.7,))
    bench.holds(0)
    bench.step(2, usage=(0.7,))
    assert bench.state.limits[0].tokens == pytest.approx(0.9 * CAPACITY, rel=0.01)
    bench.step(5 * ONE_S, usage=(0.7,))
    assert bench.state.limits[0].tokens == pytest.approx(0.2 * CAPACITY, rel=0.05)


def test_whom_the_pace_holds_back_it_is_sought_for() -> None:
    bench = _Bench()
    bench.step()
    before = bench.rate
    bench.holds(16_000, waiting=5, paced=True)
    bench.step(5 * ONE_S)
    assert bench.rate > 1.5 * before


@pytest.mark.parametrize("waiting", [0, 5], ids=["nobody waits", "something else holds them back"])
def test_else_it_stays(waiting: float) -> None:
    """What else: a limit, or a replica's own share of it while it is cut off from the others, however little is in use."""
    bench = _Bench()
    bench.step()
    before = bench.rate
    bench.holds(16_000, waiting=waiting)
    bench.step(5 * ONE_S, usage=(0.25,))
    assert bench.rate == pytest.approx(before)


def test_a_line_in_the_engines_slows_the_pace_at_once_and_for_good_where_it_stays() -> None:
    """The backlog wanted is 0.2 s of 4000 tokens a second: eight requests of 100 in the engine's line."""
    bench = _Bench()
    bench.holds(8_000, slots=100)
    bench.step()
    assert bench.rate == pytest.approx(4000)
    bench.step(lines=(8,))
    assert bench.rate == pytest.approx(4000)
    bench.step(lines=(80,))
    assert bench.rate == pytest.approx(4000 * LEAST_LEAN, rel=0.02)
    before = bench.law.memory.pace or 0.0
    bench.step(2 * ONE_S, lines=(12,))
    assert (bench.law.memory.pace or 0.0) < before * math.exp(-SEEKS_PER_S * 2 * 0.5)


def test_a_line_in_one_of_many_counts_half() -> None:
    bench = _Bench()
    bench.step(usage=(0.1,) * 10, lines=(16, *[0] * 9))
    assert bench.law.memory.lean == pytest.approx(1 + LEANS * (1 - (1.6 + 16) / 2 / 8))


def test_who_has_ended_here_stands_in_no_line_whatever_an_old_page_shows() -> None:
    bench = _Bench()
    bench.holds(16_000, slots=200)
    bench.step(lines=(40,), running=(160,))
    assert bench.law.memory.lean < 1
    bench.holds(12_000, slots=150)
    bench.step(lines=(40,), running=(160,))
    assert bench.law.memory.lean == 1


def test_sequences_of_others_that_stay_hide_no_line() -> None:
    bench = _Bench()
    bench.holds(16_000, slots=100)
    bench.step(60 * ONE_S, lines=(0,), running=(200,))
    bench.step(lines=(40,), running=(160,))
    assert bench.law.memory.lean < 1


def test_an_old_line_says_nothing() -> None:
    bench = _Bench()
    bench.step(lines=(20,))
    sample = EngineSample("e:0", at=bench.now, kv_usage=0.1, kv_capacity_tokens=CAPACITY, waiting=20)
    bench.law.step(bench.now + 0.5, Fleet(("e:0",), {"e:0": sample}), demand=bench.demand, previous=bench.state)
    assert bench.law.memory.lean == 1


def test_while_a_line_stands_p0_still_finds_room_before_it() -> None:
    """Only what is let in leans, not what the engines can do, nor P0's depth."""
    bench = _Bench()
    bench.holds(8_000, slots=100)
    bench.step()
    bench.step(lines=(80,))
    pace = bench.state.pace
    assert pace is not None
    assert pace.tokens_per_s == pytest.approx(4000, rel=0.02)
    leans = (1, LEAST_LEAN, LEAST_LEAN)
    wanted = [pace.tokens_per_s * 0.2 * depth * lean for depth, lean in zip(DEPTHS, leans, strict=True)]
    assert [pace.depth(priority) for priority in PRIORITIES] == pytest.approx(wanted)


def test_of_its_own_traffic_alone_a_replica_learns_nothing_but_goes_by_the_engines_lines() -> None:
    bench = _Bench()
    bench.step()
    before = bench.law.memory
    bench.holds(16_000, waiting=5, paced=True)
    bench.demand = structs.replace(bench.demand, whole=False)
    bench.step(10 * ONE_S, usage=(0.8,), lines=(12,))
    after = bench.law.memory
    assert after.lean < 1
    assert (after.pace, after.bias, after.foreign) == (before.pace, before.bias, before.foreign)


def test_slow_steps_lower_the_pace() -> None:
    bench = _Bench()
    bench.step()
    bench.step(2 * ONE_S, step_s=1.5 * STEP_S)
    assert bench.law.memory.pace == pytest.approx(4000 * math.exp(-SEEKS_PER_S * 2 * 0.5 * BRAKES), rel=0.02)


def test_pressure_is_that_somebody_waits_all_the_time() -> None:
    bench = _Bench()
    bench.holds(32_000, waiting=1)
    bench.step(2 * ONE_S)
    assert bench.state.saturation < 1, "a burst"
    bench.step(2 * ONE_S)
    assert bench.state.saturation == 1
    bench.holds(60_000)
    bench.step(ONE_S)
    assert bench.state.saturation < 1, "it is full, as it shall be, and nobody waits"


def test_engines_as_full_as_they_shall_be_are_pressure_whoever_fills_them_and_less_full_ones_are_none() -> None:
    bench = _Bench()
    assert bench.step(usage=(0.7,)).saturation == 0
    assert bench.step(usage=(0.95,)).saturation == 1


def test_a_replica_alone_that_never_led_paces_all_the_same_and_its_pressure_ends() -> None:
    bench = _Bench()
    bench.demand = structs.replace(bench.demand, whole=False)
    bench.holds(16_000, waiting=20)
    bench.step(10 * ONE_S, lines=(50,))
    assert bench.rate == pytest.approx(4000 * LEAST_LEAN)
    assert bench.state.saturation == 1
    bench.holds(0)
    bench.step(10 * ONE_S)
    assert bench.state.saturation < 0.1


def test_one_slow_engine_of_three_is_not_the_pool() -> None:
    bench = _Bench()
    bench.step(usage=(0.1, 0.1, 0.1))
    before = bench.law.memory
    samples = {f"e:{i}": EngineSample(f"e:{i}", 0.2, kv_usage=0.1, kv_capacity_tokens=CAPACITY) for i in range(3)}
    steps_s = (9 * STEP_S, 0.5 * STEP_S, 0.5 * STEP_S)
    samples = {s.engine: replace(s, iteration_s=step_s) for s, step_s in zip(samples.values(), steps_s, strict=True)}
    bench.law.step(0.2, Fleet(tuple(samples), samples), demand=bench.demand, previous=bench.state)
    assert bench.law.memory.pace == before.pace


def test_it_moves_at_its_own_rate_whatever_rate_it_is_called_at() -> None:
    bench = _Bench()
    bench.holds(32_000)
    bench.step(usage=(0.75,))
    once = bench.law.memory
    fleet = Fleet(("e:0",), {"e:0": EngineSample("e:0", at=bench.now, kv_usage=0.9, kv_capacity_tokens=CAPACITY)})
    bench.law.step(bench.now + 0.01, fleet, demand=bench.demand, previous=bench.state)
    assert bench.law.memory == once
