"""How a replica stands with the store, moment by moment."""

from __future__ import annotations

from extproc.model import NOTHING, Load, Priority
from extproc.ports import Ask, Want
from extproc.state.standing import AWAY_S, CUT_OFF_S, Standing
from tests.support.pools import limited

P0, _, P2 = Priority


def heard(at: float = 0.0) -> Standing:
    standing = Standing()
    standing.heard(at, in_time=True, said_alone=False)
    return standing


def test_one_that_was_never_heard_does_not_return() -> None:
    assert not Standing().returning(100.0)


def test_trouble_makes_it_alone_at_once_and_cut_off_when_it_lasts() -> None:
    standing = heard()
    assert not standing.late(1.0, NOTHING)
    assert standing.alone
    assert not standing.cut_off
    assert standing.late(1.0 + CUT_OFF_S, NOTHING)
    assert standing.cut_off
    assert not standing.late(2.0, NOTHING)  # it is so already


def test_a_moment_alone_in_which_nobody_was_let_in_needs_no_care() -> None:
    standing = heard()
    standing.late(0.1, NOTHING)
    assert not standing.back()
    assert not standing.returning(0.2)


def test_whoever_let_somebody_in_alone_returns_with_care_until_it_was_heard_as_one_of_all() -> None:
    standing = heard()
    standing.late(0.1, NOTHING)
    state = standing.state(limited(slots=10), 0.1, replicas=1, hold_s=1.0)
    verdicts = standing.answer(Ask((Load(0, 1), NOTHING, NOTHING), [Want(P0, Load(0, 1))]), NOTHING, state)
    assert verdicts.admitted == 0  # it rises from what it held then, by and by
    later = standing.state(limited(slots=10), 5.0, replicas=1, hold_s=1.0)
    assert standing.answer(Ask((NOTHING, NOTHING, NOTHING), [Want(P0, Load(0, 1))]), NOTHING, later).admitted == 1
    standing.heard(5.1, in_time=True, said_alone=True)
    standing.back()
    assert standing.returning(5.2)
    standing.heard(5.2, in_time=True, said_alone=False)
    assert not standing.returning(5.3)


def test_alone_it_refuses_the_least_important_and_says_when_to_ask_again() -> None:
    standing = heard()
    standing.late(0.1, NOTHING)
    state = standing.state(limited(slots=10), 5.0, replicas=1, hold_s=1.0)
    verdicts = standing.answer(Ask((NOTHING, NOTHING, NOTHING), [Want(P2, Load(0, 1))]), NOTHING, state)
    assert verdicts.admitted == 0
    assert verdicts.ask_again_s is not None


def test_one_that_was_cut_off_or_lost_a_call_or_stood_still_returns_with_care() -> None:
    cut_off = heard()
    cut_off.late(0.0, NOTHING)
    cut_off.late(CUT_OFF_S, NOTHING)
    assert cut_off.back()
    assert cut_off.returning(0.5)
    broken = heard()
    broken.broken()
    assert broken.returning(0.1)
    assert heard().returning(AWAY_S + 0.1)
