"""What replicas tell the leader of their traffic."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from extproc.meters import Traffic
from extproc.model import Demand, Finished, Latency, Load
from extproc.state.demand import Told, merged, pack_told, read_told

DEMAND = Demand(
    offered_per_s=(1.0, 2.0, 3.0),
    in_use=(Load(10, 1), Load(20, 2), Load(30, 3)),
    waiting=(Load(1, 1), Load(0, 0), Load(5, 2)),
    drain_per_s=Load(7.5, 0.5),
    mean_cost=Load(100, 1),
    paced=True,
)


def test_counters_come_back_as_they_were() -> None:
    finished = Finished((3, 2, 1), (4.5, 0.5, 0.02))
    assert read_told(pack_told(DEMAND, finished)) == Told(DEMAND, finished)


@pytest.mark.parametrize("text", ["[1, 2, 3]", "", '{"a": 1}', "[" + "1," * 18 + "1]"])
def test_another_versions_counters_are_not_read(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's error is one, with words of its own
        read_told(text)


def test_a_report_is_the_mean_of_what_finished_since_the_last() -> None:
    traffic = Traffic()
    traffic.finished(Latency(9.0, ttft_s=9.0, tpot_s=9.0))
    before = traffic.total
    traffic.finished(Latency(2.0, ttft_s=0.2))
    traffic.finished(Latency(4.0))
    mean = traffic.total.mean_since(before)
    assert mean is not None
    assert (mean.duration_s, mean.tpot_s) == (3.0, None)
    assert mean.ttft_s == pytest.approx(0.2)


def test_where_nothing_finished_there_is_no_mean() -> None:
    traffic = Traffic()
    traffic.finished(Latency(2.0))
    assert traffic.total.mean_since(traffic.total) is None


def test_rates_and_loads_add_up_over_replicas() -> None:
    both = merged([DEMAND, DEMAND])
    assert both.offered_per_s == (2.0, 4.0, 6.0)
    assert both.in_use[2] == Load(60, 6)
    assert both.drain_per_s == Load(15, 1)
    assert both.mean_cost == Load(100, 1)


def test_one_replica_whose_pace_holds_somebody_back_is_enough() -> None:
    free = replace(DEMAND, paced=False)
    assert merged([free, DEMAND]).paced
    assert not merged([free, free]).paced
