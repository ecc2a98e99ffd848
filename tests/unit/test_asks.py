"""Whom the next ask is for, when it is due, and what its answer leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from extproc.asks import Asked, Asks
from extproc.config import Policy
from extproc.holds import Holds
from extproc.model import NOTHING, Load, Pace, PoolState, Priority
from extproc.ports import Verdicts
from extproc.queues.bands import Bands, Waiter

_, P1, _ = Priority
ROOM = PoolState(limits=(Load(100, 10),) * 3)
FULL = Load(95, 9)


@dataclass
class Said:
    """What a ledger last said."""

    state: PoolState
    total: Load


class Line:
    """A pool's queues and its asks, and what the dispatcher does with an answer: the drop policy lets everybody stay."""

    def __init__(self) -> None:
        self.bands: Bands[str] = Bands(Policy().queues)
        self.said = Said(ROOM, NOTHING)
        self.asks = Asks(self.said, self.bands, Holds())

    def comes(self, name: str, tokens: int = 10, *, judged: bool = False) -> Waiter[str]:
        waiter = Waiter(
            name,
            priority=P1,
            load=Load(tokens, 1),
            body_bytes=0,
            arrived=0.0,
            deadline=math.inf,
            prompt_tokens=tokens,
            judged=judged,
        )
        self.bands[P1].push(waiter)
        self.asks.joined(waiter)
        return waiter

    def ask(self, pace: Pace | None = None) -> Asked[str]:
        assert self.asks.due
        return self.asks.next(0.0, pace)

    def hears(
        self, asked: Asked[str], admitted: int, *, total: Load = NOTHING, ask_again_s: float | None = None
    ) -> None:
        self.said.total = total
        self.asks.answered()
        for waiter in asked.waiters[:admitted]:
            self.bands[P1].remove(waiter, served=True)
        if asked.stops(admitted):
            for waiter in asked.newcomers:
                if self.bands[P1].remove(waiter):
                    waiter.judged = True
                    self.bands[P1].push(waiter)
        self.asks.acted_on(asked, Verdicts(admitted, ROOM, total, ask_again_s), now=0.0)


def names(asked: Asked[str]) -> list[str]:
    return [waiter.item for waiter in asked.waiters]


def test_a_newcomer_is_asked_for_and_nobody_else_while_the_answer_is_out() -> None:
    line = Line()
    line.comes("first")
    asked = line.ask()
    assert names(asked) == ["first"]
    assert [want.load for want in asked.ask.wants] == [Load(10, 1)]
    line.comes("second")
    assert not line.asks.due
    line.hears(asked, 1)
    assert names(line.ask()) == ["second"]


def test_a_line_longer_than_an_ask_is_asked_for_until_it_stops_or_is_empty() -> None:
    line = Line()
    for number in range(20):
        line.comes(str(number))
    asked = line.ask()
    assert names(asked) == [str(number) for number in range(16)]
    line.hears(asked, 16)
    asked = line.ask()
    assert names(asked) == [waiter.item for waiter in asked.newcomers] == ["16", "17", "18", "19"]
    line.hears(asked, 4)
    assert not line.asks.due


def test_where_the_line_stops_it_has_stopped_for_newcomers_not_asked_for_by_name() -> None:
    line = Line()
    for number in range(20):
        line.comes(str(number))
    asked = line.ask()
    assert asked.stops(15)
    assert len(asked.newcomers) == 20
    line.hears(asked, 15, total=FULL)
    assert not line.asks.due


def test_who_joins_a_line_that_stands_calls_for_an_ask_only_where_it_fits() -> None:
    line = Line()
    line.said.total = FULL
    line.comes("too large", tokens=6, judged=True)
    assert not line.asks.due
    line.comes("fits", tokens=5, judged=True)
    assert line.asks.due


def test_who_joined_while_the_line_was_asked_for_is_looked_at_again_by_the_answer() -> None:
    line = Line()
    line.comes("first")
    asked = line.ask()
    line.said.total = FULL
    line.comes("second", tokens=6, judged=True)
    line.hears(asked, 1, total=Load(94, 9))
    assert line.asks.due


def test_a_small_one_that_may_pass_is_asked_for_alone_and_what_came_up_still_calls_for_the_line() -> None:
    line = Line()
    for name, tokens in (("large", 50), ("small", 10)):
        line.comes(name, tokens, judged=True)
    asked = line.ask()
    newcomer = line.comes("newcomer", tokens=40)
    line.hears(asked, 0, total=Load(60, 6))
    alone = line.ask()
    assert names(alone) == ["small"]
    assert not alone.newcomers
    line.hears(alone, 1, total=Load(70, 7))
    asked = line.ask()
    assert names(asked) == ["large", "newcomer"]
    assert asked.newcomers == [newcomer]


def test_the_pace_is_what_holds_back_only_where_the_limit_does_not() -> None:
    line, pace = Line(), Pace(tokens_per_s=10.0, depths=(20.0, 20.0, 20.0))
    for name in ("first", "second", "third", "fourth", "fifth"):
        line.comes(name)
    asked = line.ask(pace)
    assert names(asked) == ["first", "second"]
    assert asked.stops(2)
    line.hears(asked, 2, total=Load(20, 2))
    assert line.asks.paced
    assert 0 < line.asks.again_at == asked.room_at < math.inf
    line.asks.needed = True
    asked = line.ask(pace)
    assert names(asked) == ["third", "fourth"]
    assert asked.room_at < math.inf
    line.hears(asked, 0, total=FULL)
    assert not line.asks.paced
    assert line.asks.again_at == math.inf


def test_the_ledger_says_when_to_ask_again() -> None:
    line = Line()
    line.comes("first")
    line.hears(line.ask(), 0, total=FULL, ask_again_s=0.5)
    assert not line.asks.due
    assert line.asks.again_at == 0.5


def test_what_was_told_at_once_is_not_asked_again() -> None:
    line = Line()
    line.asks.needed = True
    line.asks.answered_at_once()
    assert not line.asks.due
    assert line.asks.again_at == math.inf
