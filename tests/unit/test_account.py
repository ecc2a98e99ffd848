"""The account of a pool over several replicas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.account import (
    DEAD_AFTER_S,
    FORGET_AFTER_S,
    HEARD_FOR_S,
    HELD_BACK_AGAIN_S,
    NO_STATE_AGAIN_S,
    Account,
    Report,
    Settled,
)
from extproc.capacity import admissible, look_again_s
from extproc.care import RAMP_S, REPORT_S
from extproc.model import NOTHING, Hold, Load, Priority
from extproc.ports import Want
from tests.support.pools import limited, reserving

P0, P1, P2 = Priority
SETTLED = -1000.0


UNKNOWN = Hold()


class Told:
    """An account and its replicas' numbers. `ask("a", held=2, wants=[P1])`; a want is one slot, waiting for `waited` s."""

    def __init__(self, slots: float, *, generation: float | None = SETTLED) -> None:
        self.account = Account(limited(slots), generation)
        self.now = 0.0
        self.seqs: dict[str, int] = {}

    def report(
        self, replica: str, held: float, wants: list[Priority], *, hold: Hold = UNKNOWN, **more: float
    ) -> Report:
        self.seqs[replica] = self.seqs.get(replica, 0) + 1
        return Report(
            replica=replica,
            seq=self.seqs[replica],
            in_use=(NOTHING, Load(0, held), NOTHING),
            acked=int(more.get("acked", 0)),
            alone=bool(more.get("alone", 0)),
            returning=bool(more.get("returning", 0)),
            hold=hold,
            ghosts=Load(0, more.get("ghosts", 0)),
            wants=[Want(priority, Load(0, 1), more.get("waited", 0.0)) for priority in wants],
        )

    def ask(
        self, replica: str, wants: list[Priority] | None = None, *, held: float = 0, hold: Hold = UNKNOWN, **more: float
    ) -> Settled:
        settled = self.account.ask(self.now, self.report(replica, held, wants or [], hold=hold, **more))
        assert settled is not None
        return settled


def test_replicas_share_one_limit() -> None:
    told = Told(3)
    assert told.ask("a", [P1, P1]).admitted == 2
    second = told.ask("b", [P1, P1])
    assert (second.admitted, second.total.slots, second.replicas) == (1, 3, 2)
    assert told.ask("a", [P1], held=1).admitted == 1


def test_a_report_that_is_not_newer_changes_nothing() -> None:
    told = Told(3)
    old, new = told.report("a", 3, []), told.report("a", 1, [])
    assert told.account.ask(0, new) is not None
    assert told.account.ask(0, old) is None
    assert told.account.ask(0, new) is None
    assert told.account.total(0).slots == 1


def test_a_lost_answer_is_corrected_by_the_next_report() -> None:
    told = Told(2)
    told.ask("a", [P1, P1])
    assert told.ask("b", [P1]).admitted == 0
    told.ask("a", held=0)
    assert told.ask("b", [P1]).admitted == 1


@pytest.mark.parametrize(("waiting", "comes", "goes"), [(P0, P1, 0), (P1, P0, 1), (P1, P1, 0), (P2, P1, 1)])
def test_none_passes_over_a_better_waiter_elsewhere(waiting: Priority, comes: Priority, goes: int) -> None:
    told = Told(1)
    told.ask("a", held=1)
    told.ask("b", [waiting], waited=0.5)
    told.now = 0.1
    freed = told.ask("a", [comes], held=0)
    assert freed.admitted == goes
    assert freed.wake == (None if goes else "b")


def test_among_equals_the_longest_waiting_goes_first() -> None:
    told = Told(1)
    told.ask("c", held=1)
    told.ask("a", [P1], waited=0.1)
    told.ask("b", [P1], waited=0.3)
    assert told.ask("c").wake == "b"
    assert told.ask("a", [P1], waited=0.1).admitted == 0
    assert told.ask("b", [P1], waited=0.3).admitted == 1


def test_who_waits_is_heard_for_a_second_and_asks_again_before() -> None:
    told = Told(1)
    told.ask("c", held=1)
    refused = told.ask("a", [P0])
    assert refused.again_s is not None
    assert refused.again_s < HEARD_FOR_S / 2
    told.now = HEARD_FOR_S + 0.01
    told.ask("c")
    assert told.ask("b", [P2]).admitted == 1


def test_a_waiter_that_would_not_fit_is_not_woken() -> None:
    told = Told(2)
    told.ask("c", held=2)
    told.ask("a", [P1])
    assert told.ask("c", held=2).wake is None
    assert told.ask("c", held=1).wake == "a"


def test_a_silent_replica_fades_as_ghost_load_and_its_word_takes_the_ghosts_place() -> None:
    told = Told(4)
    told.ask("a", held=4, hold=Hold(3.0))
    told.now = DEAD_AFTER_S
    assert told.ask("b", [P1]).admitted == 0
    told.now = DEAD_AFTER_S + 3.0 * math.log(2)
    assert told.account.total(told.now).slots == pytest.approx(2.0)
    assert told.ask("b", [P1, P1, P1]).admitted == 2
    woken = told.ask("a", [P1], held=3)
    assert (woken.total.slots, woken.admitted) == (5, 0)
    told.now += DEAD_AFTER_S + 60
    told.ask("b", held=1)
    assert told.account.total(told.now).slots == 1


def test_what_a_dead_replica_held_is_counted_in_full_until_the_first_of_it_could_have_ended() -> None:
    told = Told(4)
    told.ask("a", held=4, hold=Hold(4.0, 3.0))
    told.now = 3.0
    assert told.account.total(told.now).slots == 4
    assert told.ask("b", [P1]).admitted == 0
    told.now = 3.0 + 4.0 * math.log(2)
    assert told.account.total(told.now).slots == pytest.approx(2.0)


def test_a_ghosts_end_is_looked_for() -> None:
    told = Told(1)
    assert told.ask("a", [P1], ghosts=1, hold=Hold(2.0)).again_s == pytest.approx(0.1)


def test_a_long_silent_empty_entry_is_forgotten_but_not_before() -> None:
    told = Told(4)
    told.ask("a")
    told.now = FORGET_AFTER_S - 1
    told.ask("b")
    assert "a" in told.account.entries
    told.now = FORGET_AFTER_S + 1
    told.ask("b")
    assert "a" not in told.account.entries


def test_in_a_new_generation_a_replica_only_replaces_what_ends_until_all_have_reported() -> None:
    told = Told(4, generation=None)
    assert told.ask("a", [P1], held=2).admitted == 0
    assert told.ask("a", [P1, P1], held=1).admitted == 1
    told.now = 0.9
    assert told.ask("b", [P1], held=2).admitted == 0
    told.now = REPORT_S + RAMP_S
    told.ask("b", held=0)
    assert told.ask("a", [P1, P1, P1], held=2).admitted == 2


def test_an_entry_older_than_what_its_replica_was_promised_begins_a_generation_once() -> None:
    told = Told(4)
    told.ask("a", held=1)
    told.now = 50.0
    assert told.ask("a", [P1], held=1, acked=7).admitted == 0
    assert told.account.generation == 50.0
    told.now = 50.5
    told.ask("b", acked=9)
    assert told.account.generation == 50.0


def test_who_returns_reports_first_and_then_its_cap_rises() -> None:
    told = Told(10)
    told.now = -1.0
    told.ask("silent")
    told.ask("a", held=2)
    told.now = 0.0
    assert told.ask("a", [P1], held=2, returning=1).admitted == 0
    told.now = 0.9
    assert told.ask("a", [P1], held=2).admitted == 0
    told.now = 1.5
    assert told.ask("a", [P1] * 9, held=2).admitted == 4
    told.now = RAMP_S
    assert told.ask("a", [P1] * 9, held=6).admitted == 4


@pytest.mark.parametrize(
    ("held_back", "comes", "goes"), [(P0, P2, 0), (P1, P2, 0), (P1, P1, 1), (P1, P0, 1), (P2, P2, 1)]
)
def test_who_is_held_back_by_its_own_cap_holds_up_the_less_important_only(
    held_back: Priority, comes: Priority, goes: int
) -> None:
    told = Told(10)
    told.ask("b")
    told.now = 0.1
    refused = told.ask("a", [held_back], held=2, returning=1, waited=9.0)
    assert (refused.admitted, refused.again_s) == (0, HELD_BACK_AGAIN_S)
    told.now = 0.2
    passing = told.ask("c", [comes])
    assert passing.admitted == goes
    assert told.ask("a", held=2).wake == (None if goes else "c")


def test_who_is_held_back_keeps_its_place_while_it_is_alone() -> None:
    told = Told(3)
    told.ask("b", [P2], held=3)
    told.now = 0.1
    told.ask("a", [P0], returning=1)
    assert told.ask("a", alone=1).wake is None
    assert told.ask("b", [P2], held=2).admitted == 0


def test_nobody_is_woken_who_would_have_to_wait_for_one_that_is_held_back() -> None:
    told = Told(3)
    told.ask("b", [P2], held=3)
    told.now = 0.1
    told.ask("a", [P0], returning=1)
    assert told.ask("b", [P2], held=2).wake is None
    assert told.ask("c").wake is None


def test_who_returns_is_held_back_only_until_all_whom_the_account_knew_have_asked_again() -> None:
    """A late answer made a replica go alone for a moment. Held back by time, its P0 waited for two seconds."""
    told = Told(10)
    told.ask("dead")
    told.now = 5.0
    told.ask("a", held=2)
    told.ask("b")
    told.ask("b", alone=1)
    told.now = 5.1
    assert told.ask("a", [P0], held=2, returning=1).admitted == 0
    told.ask("b", alone=1)
    assert told.ask("a", [P0], held=2).admitted == 0
    told.ask("b", returning=1)
    assert told.ask("a", [P0], held=2).admitted == 1


def test_who_returns_twice_still_awaits_those_it_knew_at_first() -> None:
    told = Told(10)
    told.ask("a", held=2)
    told.ask("away", held=2)
    told.now = 20.0
    assert told.ask("a", [P0], held=2, returning=1).admitted == 0
    told.ask("a", held=2, alone=1)
    told.now = 20.2
    assert told.ask("a", [P0], held=2, returning=1).admitted == 0
    told.ask("away", held=4, returning=1)
    assert told.ask("a", [P0], held=2).admitted == 1


def test_a_replica_alone_keeps_its_place_in_the_line_for_a_second() -> None:
    told = Told(1)
    told.ask("c", held=1)
    told.ask("a", [P0])
    told.now = 0.1
    told.ask("a", alone=1)
    assert told.ask("b", [P2]).admitted == 0
    assert told.ask("c", held=0).wake == "a"
    told.now = HEARD_FOR_S + 0.01
    told.ask("a", alone=1)
    assert told.ask("b", [P2]).admitted == 1


@pytest.mark.parametrize("returning", [0, 1])
def test_no_p2_goes_while_the_others_have_not_reported(returning: int) -> None:
    """After a restart of the store a P2 took the place of one that ended, while a P0 waited at a replica yet unheard."""
    told = Told(10, generation=None)
    told.ask("b", held=1)
    assert told.ask("a", held=4, returning=returning).admitted == 0
    assert told.ask("a", [P2], held=3).admitted == 0
    assert told.ask("a", [P1, P2], held=3).admitted == 1
    told.now = REPORT_S + 0.5
    told.ask("b", held=1)
    assert told.ask("a", [P2], held=3).admitted == 1


def test_how_many_go_by_another_policy_is_told() -> None:
    told = Told(4)
    told.account.ask(0, Report("a", 1, (NOTHING,) * 3, policy="one"))
    told.account.ask(0, Report("b", 1, (NOTHING,) * 3, policy="two"))
    settled = told.account.ask(0, Report("c", 1, (NOTHING,) * 3, policy="two"))
    assert settled is not None
    assert settled.differing == 1


def test_without_a_known_limit_nobody_goes_and_the_question_comes_back_soon() -> None:
    account = Account()
    settled = account.ask(0, Report("a", 1, (NOTHING,) * 3, wants=[Want(P0, Load(1, 1))]))
    assert settled is not None
    assert (settled.admitted, settled.again_s) == (0, NO_STATE_AGAIN_S)


def test_reserves_hold_over_all_replicas() -> None:
    told = Told(4)
    told.account.state = reserving(limited(4), p0=2)
    assert told.ask("a", [P1]).admitted == 1
    assert told.ask("b", [P1, P1]).admitted == 1
    assert told.ask("b", [P0, P0], held=1).admitted == 2


few = st.builds(Load, st.integers(0, 400), st.integers(0, 4))


@given(
    asked=st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 300)), max_size=6),
    in_use=st.tuples(few, few, few),
    ghosts=few,
    slots=st.integers(0, 12),
)
def test_with_one_replica_it_comes_down_to_its_arithmetic(
    asked: list[tuple[Priority, int]], in_use: tuple[Load, Load, Load], ghosts: Load, slots: int
) -> None:
    state = reserving(limited(slots), p0=1, p1=1)
    wants = [Want(priority, Load(size, 1)) for priority, size in asked]
    settled = Account(state, SETTLED).ask(0.0, Report("only", 1, in_use, ghosts=ghosts, hold=Hold(3.0), wants=wants))
    assert settled is not None
    assert settled.admitted == admissible(wants, in_use, ghosts, state)
    refused = settled.admitted < len(wants)
    assert settled.again_s == (look_again_s(ghosts, Hold(3.0)) if refused else None)
    assert settled.total == sum((want.load for want in wants[: settled.admitted]), sum(in_use, ghosts))
