"""Open-loop traffic: exactly as much as a phase offers, and the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from extproc.model import PRIORITIES
from extproc.sim.world.traffic import BURST_PERIOD_S, BURST_SHARE, Arrival, Crowd, Workload, arrivals

SECONDS = 40.0
ASKED = 400_000.0
USUAL, CHAT = Crowd(), Workload()


def drawn(crowd: Crowd = USUAL, *, seed: str = "1", workload: Workload = CHAT, pools: int = 1) -> Sequence[Arrival]:
    return arrivals(workload, output_tokens=ASKED, from_s=100.0, seconds=SECONDS, crowd=crowd, pools=pools, seed=seed)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_every_seed_offers_the_same_and_in_order(seed: str) -> None:
    requests = drawn(seed=seed)
    assert ASKED <= sum(one.output_tokens for one in requests) < ASKED + CHAT.output.most
    assert all(a.at_s <= b.at_s for a, b in pairwise(requests))
    assert requests[0].at_s >= 100.0
    assert requests[-1].at_s < 100.0 + SECONDS


def test_the_same_seed_asks_the_same() -> None:
    assert drawn() == drawn()
    assert drawn() != drawn(seed="2")


def test_priorities_and_pools_come_in_their_shares() -> None:
    requests = drawn(pools=4)
    for priority, share in zip(PRIORITIES, CHAT.mix, strict=True):
        assert sum(one.priority is priority for one in requests) / len(requests) == pytest.approx(share, abs=0.03)
    assert {one.pool for one in requests} == {0, 1, 2, 3}


def test_those_who_leave_come_on_top() -> None:
    requests = drawn(Crowd(leaving=0.8, leaves_within_s=0.2))
    staying = [one for one in requests if one.leaves_after_s == math.inf]
    assert sum(one.output_tokens for one in staying) >= ASKED
    assert len(staying) / len(requests) == pytest.approx(0.2, abs=0.03)


def test_bursts_bring_more_than_half_in_a_quarter_of_the_time() -> None:
    requests = drawn(Crowd(bursty=True))
    inside = sum((one.at_s - 100.0) % BURST_PERIOD_S < BURST_SHARE * BURST_PERIOD_S for one in requests)
    assert inside / len(requests) == pytest.approx(0.625, abs=0.03)


def test_no_p0_has_a_prompt_that_no_engine_could_start_in_time() -> None:
    requests = drawn(workload=Workload(long=0.05, long_tokens=32_000))
    long = [one for one in requests if one.prompt_tokens == 32_000]
    assert len(long) / len(requests) == pytest.approx(0.05, abs=0.02)
    assert all(one.priority for one in long)
