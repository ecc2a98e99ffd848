"""What a pool promises, and whether the promise bounds a wait."""

from __future__ import annotations

import math

import pytest

from extproc.config import ControllerName, FusedPolicy, PoolPolicy, TargetPolicy
from extproc.config.section import Seconds
from extproc.model import Cost, Load, Pace, PoolState, Priority
from extproc.submission import DEPTH_SHARE, Submission
from extproc.targets import enforced_first_token_s, per_token_s

P0, P1, P2 = Priority
FUSED = (ControllerName.FUSED,)
LIMIT = Load(1e6, 100)
PACED = PoolState(limits=(LIMIT,) * 3, engines_reporting=2, pace=Pace(10_000.0, (4000.0, 3000.0, 2000.0)))


def _pool(**fields: object) -> PoolPolicy:
    targets = {P1: TargetPolicy(ttft_s=Seconds(2), tpot_s=Seconds(0.05)), P2: TargetPolicy()}
    return PoolPolicy(**{"controllers": FUSED, "targets": targets, **fields})  # type: ignore[arg-type]


def test_nobody_is_late_for_a_promise_that_nobody_gave() -> None:
    pool = _pool()
    assert enforced_first_token_s(pool) == (math.inf, 2.0, math.inf)
    assert per_token_s(pool) == 0.05
    assert per_token_s(_pool(targets={})) == 0.06


@pytest.mark.parametrize(
    "pool",
    [_pool(fused=FusedPolicy(refuse_late=False)), _pool(controllers=(ControllerName.FIXED,))],
    ids=["told not to", "others"],
)
def test_elsewhere_the_late_are_served_as_well(pool: PoolPolicy) -> None:
    assert enforced_first_token_s(pool) == (math.inf,) * 3


def test_a_wait_leaves_time_for_the_first_token_within_the_target() -> None:
    """Of 3 s less a margin, a part of P1's depth at the pool's pace and the prompt at one engine's."""
    assert Submission(P1, Cost(10, 10), target_s=3.0).useful_wait_s(PACED) == pytest.approx(
        2.85 - 0.3 * DEPTH_SHARE - 0.002
    )


def test_a_long_prompt_leaves_less_to_wait() -> None:
    """1500 tokens at one engine's 5000 a second, behind a part of P0's depth: 0.3 s, and that of 0.4 s, of the 0.95."""
    assert Submission(P0, Cost(1500, 10), target_s=1.0).useful_wait_s(PACED) == pytest.approx(0.65 - 0.4 * DEPTH_SHARE)


def test_the_client_may_be_less_patient_than_the_target() -> None:
    assert Submission(P2, Cost(500, 10), target_s=10.0, patience_s=1.0).useful_wait_s(PACED) == pytest.approx(
        0.85 - 0.2 * DEPTH_SHARE
    )
