"""Whether two worlds put the controllers in the same order, and that they are given the same requests."""

from __future__ import annotations

import pytest

from bench.order import policy_text, virtual_round, workload
from bench.ordering import Round, order, table
from extproc.config import parse_policy
from extproc.sim.world.setups import setup_named


def rounds(**goodput: tuple[float, ...]) -> list[Round]:
    return [
        Round(name, seed, value, p0_missed=0.0, refused=0.0, failed=0.0, preemptions=0)
        for name, values in goodput.items()
        for seed, value in enumerate(values)
    ]


def test_the_same_order_is_one_and_the_reverse_minus_one() -> None:
    here = rounds(a=(1, 2), b=(3, 4), c=(5, 6))
    assert order(here, here).tau == 1
    there = order(here, rounds(a=(5, 6), b=(3, 4), c=(1, 2)))
    assert (there.tau, there.told_apart) == (-1, 3)
    assert there.contradicted == (("a", "b"), ("a", "c"), ("b", "c"))


def test_rounds_that_overlap_contradict_nobody() -> None:
    found = order(rounds(a=(1, 4), b=(3, 5)), rounds(a=(9, 9), b=(1, 2)))
    assert (found.tau, found.told_apart, found.contradicted) == (-1, 0, ())


def test_the_table_has_both_worlds_of_each() -> None:
    here = rounds(none=(1000, 3000), fused=(4000, 4200))
    lines = table(here, here).splitlines()
    assert len(lines) == 5
    assert lines[1].split() == ["none", "real", "2000", "(1000", "to", "3000)", "0.0%", "0.0%", "0.0%", "0"]


def test_the_stack_gets_the_policy_of_the_simulation_without_its_engines() -> None:
    (pool,) = parse_policy(policy_text(setup_named("fused"))).pools
    assert pool.engines.static == ()
    assert [name.value for name in pool.controllers] == ["fused"]


@pytest.mark.parametrize("seed", [1, 2])
def test_from_idle_fused_is_not_far_behind_a_limit_that_was_tuned(seed: int) -> None:
    """A small cache once made it begin at a fifth of what the engines prefill, and take as long as this to find out."""
    requests = workload(seed, 7.0)
    fixed, fused = (virtual_round(name, seed, requests, seconds=7.0) for name in ("fixed", "fused"))
    assert fused.goodput_tokens_per_s > 0.85 * fixed.goodput_tokens_per_s
    assert fused.p0_missed < 0.02
