"""The drop policies of the default queues where `fused` is in charge, and no targets bound a wait."""

from __future__ import annotations

from dataclasses import replace

from extproc.model import Outcome, Priority
from extproc.sim.world.capacity import CHAT
from extproc.sim.world.record import Record
from extproc.sim.world.run import Cell, play_in
from extproc.sim.world.scenario import Phase, Scenario
from extproc.sim.world.setup import Setup

FUSED = Setup("fused", pool={"controllers": ["fused"], "fused": {"refuseLate": False}})
ONLY = {Priority.P1: (0.0, 1.0, 0.0), Priority.P2: (0.0, 0.0, 1.0)}
NOTICED_S = 4.0
"""After so long a line is no burst any more."""


def twice_too_much(priority: Priority) -> list[Record]:
    workload = replace(CHAT, mix=ONLY[priority])
    scenario = Scenario(
        "one-priority", "", lambda rho, _: (Phase(15.0, rho, workload),), engines=1, warm_up_s=0.0, cool_down_s=0.0
    )
    return play_in(scenario, Cell("one-priority", 2.0, 1024, 1), setup=FUSED).records


def waited_s(record: Record) -> float:
    until = record.ended_at if record.admitted_at is None else record.admitted_at
    assert until is not None
    return until - record.sent_at


def test_p2_is_refused_as_soon_as_a_line_is_no_burst_any_more() -> None:
    records = twice_too_much(Priority.P2)
    refused = [record for record in records if record.reason]
    assert len(refused) > 0.3 * len(records)
    assert {record.reason for record in refused} == {Outcome.SHED, Outcome.EARLY_DROP}, "who waited when it began, too"
    assert max(map(waited_s, records)) < NOTICED_S
    assert max(waited_s(record) for record in records if record.sent_at > NOTICED_S) < 2.0


def test_p1_is_dropped_early() -> None:
    records = twice_too_much(Priority.P1)
    refused = [record for record in records if record.reason]
    assert len(refused) > 0.2 * len(records)
    assert {record.reason for record in refused} == {Outcome.EARLY_DROP}
    assert max(map(waited_s, records)) < 10.0
