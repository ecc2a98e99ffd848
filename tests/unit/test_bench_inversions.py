"""What the replicas' benchmark counts as a P2 let in while a P0 waits."""

from __future__ import annotations

import pytest

from bench.shared_engine import Arrival
from bench.shared_inversion import Unheard, Way, inversions, longest_s, measured_ways
from bench.shared_load import Sent


def arrival(at: float, number: int, priority: str, replica: str = "a") -> Arrival:
    return Arrival(at, number, priority, bool(replica), 0, replica)


def p0(sent: float, came: float | None, replica: str = "a") -> tuple[list[Sent], dict[int, Arrival]]:
    came_at = {} if came is None else {1: arrival(came, 1, "P0", replica)}
    return [Sent(1, "P0", sent, status=0 if came is None else 200)], came_at


@pytest.mark.parametrize(("p2_at", "waited_s"), [(9.0, 0.0), (10.5, 0.5), (12.5, 0.0)])
def test_only_a_p2_between_a_p0s_sending_and_its_arrival_goes_before_it(p2_at: float, waited_s: float) -> None:
    sent, came = p0(10.0, 12.0)
    assert longest_s(inversions(sent, came, [arrival(p2_at, 2, "P2")]), heard=True) == waited_s


def test_a_p0_that_never_came_waits_to_the_end() -> None:
    sent, came = p0(10.0, None)
    assert longest_s(inversions(sent, came, [arrival(90.0, 2, "P2")]), heard=True) == 80.0


def test_one_at_a_replica_that_stands_still_is_unheard_until_it_wakes() -> None:
    sent, came = p0(10.0, 16.0)
    found = inversions(
        sent, came, [arrival(12.0, 2, "P2"), arrival(15.1, 3, "P2")], [Unheard("a", 11, 15), Unheard("b", 9, 20)]
    )
    assert longest_s(found, heard=False) == 2.0
    assert longest_s(found, heard=True) == pytest.approx(0.1)


def test_one_that_envoy_let_by_was_at_a_replica_that_was_gone() -> None:
    sent, came = p0(10.0, 12.0, replica="")
    found = inversions(sent, came, [arrival(11.0, 2, "P2")])
    assert (longest_s(found, heard=True), longest_s(found, heard=False)) == (0.0, 1.0)


def test_what_the_way_takes_is_no_waiting() -> None:
    sent, came = p0(10.0, 12.0)
    ways = [Way(9.0, 9.9), Way(10.1, 10.4), Way(10.2, 10.3), Way(11.5, 13.0)]
    found = inversions(sent, came, [arrival(11.0, 2, "P2")], ways=ways)
    assert longest_s(found, heard=True) == pytest.approx(0.7)


@pytest.mark.parametrize(("p2_at", "waited_s"), [(11.8, 0.0), (11.6, 1.3)])
def test_one_whose_verdict_was_on_its_way_waited_no_more(p2_at: float, waited_s: float) -> None:
    sent, came = p0(10.0, 12.0)
    found = inversions(sent, came, [arrival(p2_at, 2, "P2")], ways=[Way(11.0, 11.3)])
    assert longest_s(found, heard=True) == pytest.approx(waited_s)
    assert found[0].raw_s == pytest.approx(p2_at - 10)


def test_what_met_a_replica_that_stood_still_does_not_measure_the_way() -> None:
    sent = [Sent(-1, "", 1.0), Sent(-2, "", 4.0), Sent(-3, "", 6.0), Sent(-4, "", 6.0)]
    came = {-1: arrival(1.1, -1, ""), -2: arrival(5.5, -2, ""), -3: arrival(6.1, -3, "")}
    assert measured_ways(sent, came, [Unheard("a", 3.0, 5.0)]) == [Way(1.0, 1.1), Way(6.0, 6.1)]
    assert len(measured_ways(sent, came, [Unheard("a", 3.0, 5.0, still=False)])) == len(came), "it runs, cut off or not"
