"""What every ledger promises, over every implementation."""

from __future__ import annotations

import pytest

from extproc.clock import Clock, Timer
from extproc.model import NOTHING, Load, PoolState, Priority
from extproc.ports import Ask, Ledger, Verdicts, Want
from extproc.state.local import LocalLedger
from tests.support.pools import limited

ONE = Load(10, 1)


class HandClock(Clock):
    """Time moves when the test says so."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def call_at(self, when: float, callback: object) -> Timer:
        raise AssertionError("a ledger sets no timers in these tests")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(clock: HandClock) -> LocalLedger:
    return LocalLedger(limited(slots=2), clock)


def ask(
    ledger: Ledger, *wants: Priority, held: int = 0, ghosts: Load = NOTHING, hold_s: float | None = None
) -> Verdicts:
    answers: list[Verdicts] = []
    in_use = (NOTHING, ONE.scaled(held), NOTHING)
    line = [Want(priority, ONE) for priority in wants]
    ledger.ask(Ask(in_use=in_use, wants=line, ghosts=ghosts, mean_hold_s=hold_s), answers.append)
    [answer] = answers
    return answer


P0, P1, P2 = Priority


def test_admits_from_the_front_up_to_the_limit(ledger: LocalLedger) -> None:
    verdicts = ask(ledger, P0, P1, P2)
    assert verdicts.admitted == 2
    assert verdicts.total == Load(20, 2)
    assert verdicts.ask_again_s is None


def test_what_is_in_use_is_absolute_so_that_saying_it_twice_changes_nothing(ledger: LocalLedger) -> None:
    assert ask(ledger, held=1).total == ask(ledger, held=1).total == Load(10, 1)
    assert ask(ledger, P1, P1, held=1).admitted == 1


def test_an_ask_without_wants_reports_only(ledger: LocalLedger) -> None:
    verdicts = ask(ledger, held=2)
    assert verdicts.admitted == 0
    assert verdicts.ask_again_s is None


def test_ghost_load_holds_and_decays_with_the_mean_hold(ledger: LocalLedger, clock: HandClock) -> None:
    held_up = ask(ledger, P1, ghosts=Load(20, 2), hold_s=4.0)
    assert held_up.admitted == 0
    assert held_up.ask_again_s is not None
    assert 0 < held_up.ask_again_s < 1
    clock.at += 4.0 * 0.7
    assert ask(ledger, P1).admitted == 1
    clock.at += 4.0
    assert ledger.ghosts == NOTHING
    assert ask(ledger, P1, P1).admitted == 2


def test_a_published_state_holds_for_the_next_ask_and_wakes(ledger: LocalLedger) -> None:
    woken: list[PoolState] = []
    ledger.on_wake(lambda: woken.append(ledger.state))
    ledger.publish(limited(slots=5))
    assert woken == [limited(slots=5)]
    assert ask(ledger, P0, P0, P0).admitted == 3
