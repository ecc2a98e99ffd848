"""What controllers are judged by, on runs small enough to count by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from extproc.model import Priority
from extproc.sim.world import measures
from extproc.sim.world.measures import Span
from extproc.sim.world.record import Diary, Fate, Record
from extproc.sim.world.traffic import Arrival, Sender

P0, P1, P2 = Priority
CALM, BUSY, CROWDED = (
    Span(0.0, 10.0, 0.5, 1000.0, 0.1),
    Span(10.0, 20.0, 2.0, 1000.0, 0.4),
    Span(20.0, 30.0, 10.0, 1000.0, 1.5),
)


def sent(
    at_s: float, *, priority: Priority = P0, tenant: str = "a", tokens: int = 11, leaves_after_s: float = math.inf
) -> Arrival:
    return Arrival(at_s, priority, tenant, 100, tokens, 400, leaves_after_s=leaves_after_s)


def answered(arrival: Arrival, *, ttft_s: float = 0.5, tpot_s: float = 0.05) -> Record:
    first_at = arrival.at_s + ttft_s
    last_at = first_at + tpot_s * (arrival.output_tokens - 1)
    return Record(arrival, arrival.at_s, 0, Fate.ANSWERED, "", arrival.at_s, first_at, last_at, last_at)


def refused(arrival: Arrival, attempt: int = 0) -> Record:
    return Record(arrival, arrival.at_s, attempt, Fate.REFUSED, "overload", ended_at=arrival.at_s)


@pytest.mark.parametrize(("priority", "in_time_s"), [(P0, 1.0), (P1, 3.0), (P2, 10.0)])
def test_a_first_token_is_in_time_by_its_priority(priority: Priority, in_time_s: float) -> None:
    assert measures.in_target(answered(sent(0.0, priority=priority), ttft_s=in_time_s - 0.01))
    assert not measures.in_target(answered(sent(0.0, priority=priority), ttft_s=in_time_s + 0.01))


def test_an_answer_is_in_target_by_its_mean_pace_and_only_as_a_whole() -> None:
    assert measures.in_target(answered(sent(0.0), tpot_s=0.059))
    assert not measures.in_target(answered(sent(0.0), tpot_s=0.061))
    assert not measures.in_target(Record(sent(0.0), 0.0, fate=Fate.LEFT, first_at=0.1))


def test_goodput_counts_what_was_sent_in_time_and_answered_in_target() -> None:
    records = [answered(sent(5.0)), answered(sent(9.9)), answered(sent(10.0)), answered(sent(6.0), ttft_s=2.0)]
    assert measures.good_tokens(records, 0.0, 10.0) == 22


def test_p0_counts_first_attempts_where_p0_alone_fits_and_those_who_stay() -> None:
    spans = (CALM, BUSY, CROWDED)
    again = Record(sent(5.0), 5.0, attempt=1)
    leaving = answered(sent(5.0, leaves_after_s=0.1))
    others = [again, leaving, refused(sent(25.0)), refused(sent(5.0, priority=P1))]
    assert measures.p0_sent([*others, refused(sent(15.0))], spans) == [refused(sent(15.0))]


def test_wasted_is_all_that_is_in_no_answer_within_target() -> None:
    diary = Diary([answered(sent(1.0)), answered(sent(1.0), ttft_s=5.0)], computed_tokens=222)
    assert measures.wasted(diary) == pytest.approx(0.5)


def test_idle_counts_only_where_somebody_was_refused() -> None:
    diary = Diary(generated=Counter({0: 40, 1: 40, 2: 100}), refused=Counter({1: 1, 2: 3}))
    assert measures.idle_refusing(diary, [Span(0.0, 4.0, 2.0, 400.0, 0.1)]) == pytest.approx(0.6 / 4)


def test_fairness_is_between_tenants_that_were_refused_something() -> None:
    senders = [Sender("a"), Sender("b", weight=2.0), Sender("idle")]
    served = [answered(sent(1.0, tenant="a")) for _ in range(10)] + [answered(sent(1.0, tenant="b")) for _ in range(20)]
    turned_away = [refused(sent(1.0, tenant="a")), refused(sent(1.0, tenant="b"))]
    alone = answered(sent(1.0, tenant="idle"))
    assert measures.jain(Diary([*served, *turned_away, alone]), [CALM], senders) == pytest.approx(1.0)
    assert measures.jain(Diary([*served, alone]), [CALM], senders) is None


def test_reaction_is_to_the_last_miss_after_a_step_up_where_p0_fits() -> None:
    records = [refused(sent(10.4)), refused(sent(25.0)), answered(sent(15.0))]
    assert measures.reaction_s(records, (CALM, BUSY, CROWDED)) == pytest.approx(0.4)
    assert measures.reaction_s(records, (BUSY, CALM)) is None


def test_recovery_is_to_the_last_refusal_after_the_load_is_back() -> None:
    spans = (Span(0.0, 10.0, 2.0, 1.0, 0.1), Span(10.0, 20.0, 0.5, 1.0, 0.1))
    assert measures.recovery_s([refused(sent(9.0)), refused(sent(11.5))], spans) == pytest.approx(1.5)
    assert measures.recovery_s([], (CALM, BUSY)) is None


def test_amplification_is_of_those_who_do_as_they_are_told() -> None:
    deaf = sent(1.0)._replace(obeys=False)
    records = [refused(sent(1.0)), refused(sent(1.0), 1), answered(sent(2.0)), *(refused(deaf, i) for i in range(9))]
    assert measures.amplification(records) == pytest.approx(1.5)
