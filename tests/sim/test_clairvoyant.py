"""Who knows all lengths serves the very requests of a run, in strict order, and holds its limits."""

from __future__ import annotations

from itertools import pairwise

from extproc.model import Priority
from extproc.sim.engine_spec import EngineSpec
from extproc.sim.oracle import Limits
from extproc.sim.world.capacity import CHAT
from extproc.sim.world.clairvoyant import PATIENCE_S, serve
from extproc.sim.world.client import FRONT_S
from extproc.sim.world.record import Record
from extproc.sim.world.run import traffic
from extproc.sim.world.scenario import Phase
from extproc.sim.world.scenarios import SCENARIOS
from extproc.sim.world.traffic import Arrival

SPEC = EngineSpec()
WIDE = (1e6, 1e6, 1e6)
NO_MORE = EngineSpec(max_num_seqs=1)


def one(at_s: float, priority: Priority = Priority.P0, *, prompt: int = 500, output: int = 100) -> Arrival:
    return Arrival(at_s, priority, "a", prompt, output, 4 * prompt)


def first_at(record: Record) -> float:
    assert record.first_at is not None
    return record.first_at


def test_alone_a_request_takes_what_the_engine_takes() -> None:
    (record,) = serve([one(1.0)], Limits(WIDE), SPEC, engines=2)
    model = SPEC.step_base_s + SPEC.prefill_token_s * 500 + SPEC.sequence_s + SPEC.context_token_s * 500
    assert abs(first_at(record) - 1.0 - FRONT_S - model) < 1e-9
    assert record.last_at is not None
    assert record.last_at - first_at(record) > 99 * SPEC.step_base_s


def test_no_more_is_held_than_the_limit_and_the_longest_waits_go_first() -> None:
    arrivals = [one(1.0 + index / 1000, Priority.P2) for index in range(5)]
    records = serve(arrivals, Limits((700.0, 700.0, 700.0)), SPEC, engines=1)
    for before, after in pairwise(records):
        assert before.last_at is not None
        assert first_at(after) > before.last_at, "each holds 600"


def test_nobody_passes_who_is_less_important_or_smaller() -> None:
    arrivals = [
        one(1.0, output=50),
        one(1.1),
        one(1.2, prompt=10, output=10),
        one(1.3, Priority.P1, prompt=5, output=5),
    ]
    records = serve(arrivals, Limits((700.0, 700.0, 700.0)), SPEC, engines=1)
    order = sorted(records, key=first_at)
    assert order == records


def test_p0_passes_who_waits() -> None:
    arrivals = [one(1.0, Priority.P1), one(1.1, Priority.P1), one(1.2)]
    first, second, important = serve(arrivals, Limits((700.0, 700.0, 700.0)), SPEC, engines=1)
    assert first_at(first) < first_at(important) < first_at(second)


def test_who_waits_too_long_is_not_served() -> None:
    arrivals = [one(1.0, output=400), one(1.1)]
    long, late = serve(arrivals, Limits(WIDE), NO_MORE, engines=1)
    assert long.last_at is not None
    assert long.last_at > 1.1 + PATIENCE_S[Priority.P0]
    assert late.first_at is None


def test_no_prompt_joins_a_line_that_is_long_enough() -> None:
    arrivals = [one(1.0 + index / 1e4, Priority.P2, prompt=4000, output=2) for index in range(3)]
    together = serve(arrivals, Limits(WIDE), SPEC, engines=1)
    apart = serve(arrivals, Limits(WIDE, line_s=0.0), SPEC, engines=1)
    assert first_at(apart[0]) <= first_at(together[0]), "alone even the longest may go"
    for before, after in pairwise(apart):
        assert first_at(after) > first_at(before) + FRONT_S + SPEC.prefill_token_s * 4000
    assert first_at(apart[2]) > first_at(together[2])


def test_all_that_an_engine_takes_ends() -> None:
    scenario = SCENARIOS["sweep"]
    requests = traffic(scenario, (Phase(5.0, 0.8, CHAT),), SPEC, 1)
    records = serve(requests, Limits(WIDE), SPEC, engines=2)
    assert [record.arrival for record in records] == requests
    assert all(record.last_at is not None for record in records)
