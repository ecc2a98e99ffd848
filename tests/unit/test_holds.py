"""What a replica holds of a pool, and what it tells the ledger of it."""

from __future__ import annotations

import math

from extproc.holds import Holds
from extproc.model import NOTHING, Cost, End, Latency, Load, Pace, Priority
from extproc.submission import Submission

P0, P1, _ = Priority
REQUEST = Submission(P1, Cost(100, 20))
LOAD = Load(120, 1)


def test_what_begins_is_in_use_until_it_ends() -> None:
    holds = Holds()
    holds.began(REQUEST, 0.0, None)
    assert holds.in_use == (NOTHING, LOAD, NOTHING)
    holds.ended(P1, LOAD, End.COMPLETED, Latency(2.0))
    assert holds.in_use == (NOTHING, NOTHING, NOTHING)
    assert holds.traffic.take_latencies() == (Latency(2.0),)


def test_a_client_that_left_is_no_latency() -> None:
    holds = Holds()
    holds.began(REQUEST, 0.0, None)
    holds.ended(P1, LOAD, End.IGNORED, Latency(2.0))
    assert holds.traffic.take_latencies() == ()


def test_ghosts_are_told_once_and_go_on_until_they_are() -> None:
    holds = Holds()
    holds.began(REQUEST, 0.0, None)
    holds.ended(P1, LOAD, End.GHOST, Latency(2.0))
    assert holds.ask([]).ghosts == LOAD
    assert holds.ask([]).ghosts == LOAD  # the ledger did not take that one
    holds.told()
    assert holds.ask([]).ghosts == NOTHING


def test_a_pace_holds_back_by_the_prompts_on_their_way_and_none_holds_nobody() -> None:
    holds = Holds()
    pace = Pace(tokens_per_s=100.0, depths=(150.0, 50.0, 0.0))
    holds.began(REQUEST, 0.0, pace)
    assert holds.lets([REQUEST, REQUEST], 0.0, None) == ([REQUEST, REQUEST], math.inf)
    going, room_at = holds.lets([REQUEST], 0.0, pace)
    assert not going
    assert 1.0 <= room_at < 1.01
    urgent = Submission(P0, Cost(100, 20))
    assert holds.lets([urgent, REQUEST], 0.0, pace)[0] == [urgent]
