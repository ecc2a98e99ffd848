"""Who bears a rejection rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import ShedOrder
from extproc.controllers.shed import spread
from extproc.model import Demand

LOWEST = ShedOrder.LOWEST_FIRST


def _demand(p0: float, p1: float, p2: float) -> Demand:
    return Demand(offered_per_s=(p0, p1, p2))


@pytest.mark.parametrize(
    ("rate", "offered", "expected"),
    [
        (0.25, (15, 35, 50), (0, 0, 0.5)),
        (0.50, (15, 35, 50), (0, 0, 1)),
        (0.85, (15, 35, 50), (0, 1, 1)),
        (0.675, (15, 35, 50), (0, 0.5, 1)),
        (0.925, (15, 35, 50), (0.5, 1, 1)),
        (1.0, (15, 35, 50), (1, 1, 1)),
        (0.0, (15, 35, 50), (0, 0, 0)),
        (0.3, (0, 0, 0), (0.3, 0.3, 0.3)),
        (0.3, (7, 0, 0), (0.3, 1, 1)),
        (0.3, (0, 7, 0), (0, 0.3, 1)),
        (0.3, (0, 0, 7), (0, 0, 0.3)),
    ],
)
def test_takes_from_the_lowest_first(
    rate: float, offered: tuple[float, float, float], expected: tuple[float, float, float]
) -> None:
    assert spread(rate, LOWEST, _demand(*offered)) == pytest.approx(expected)


def test_uniform_gives_the_rate_to_everybody() -> None:
    assert spread(0.4, ShedOrder.UNIFORM, _demand(1, 2, 3)) == (0.4, 0.4, 0.4)


@given(st.floats(0, 1), st.tuples(*[st.floats(0, 1e6)] * 3))
def test_refuses_the_same_share_of_all_traffic(rate: float, offered: tuple[float, float, float]) -> None:
    shares = spread(rate, LOWEST, _demand(*offered))
    refused = sum(share * load for share, load in zip(shares, offered, strict=True))
    assert refused == pytest.approx(rate * sum(offered), rel=1e-6, abs=1e-6)
    assert list(shares) == sorted(shares)
