"""The engine in real time, on a clock that the test turns."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from extproc.sim.engine import EngineModel, EngineSpec, Refusal, SimRequest
from extproc.sim.engine_pacer import EnginePacer

STEP_S = 0.010
SPEC = EngineSpec(
    kv_tokens=1600, max_num_seqs=8, step_base_s=STEP_S, prefill_token_s=0.0, sequence_s=0.0, context_token_s=0.0
)


@dataclass(order=True)
class Alarm:
    when: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    off: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.off = True


class HandClock:
    """Time moves when `to` is called; alarms ring `slow` seconds late."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slow = 0.0
        self.alarms: list[Alarm] = []

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(when, len(self.alarms), callback)
        heapq.heappush(self.alarms, alarm)
        return alarm

    def to(self, when: float) -> None:
        while self.alarms and self.alarms[0].when + self.slow <= when:
            alarm = heapq.heappop(self.alarms)
            self.time = max(self.time, alarm.when + self.slow)
            if not alarm.off:
                alarm.callback()
        self.time = max(self.time, when)


class Listener:
    """Notes when each token came."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.times: list[float] = []
        self.end: str | None = None

    def token(self) -> None:
        self.times.append(self.clock.time)

    def last(self) -> None:
        self.token()
        self.end = "last"

    def cut(self) -> None:
        self.end = "cut"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def pacer(clock: HandClock) -> EnginePacer:
    return EnginePacer(EngineModel(SPEC), clock)


def start(pacer: EnginePacer, clock: HandClock, tokens: int) -> tuple[Listener, list[int]]:
    listener = Listener(clock)
    handles = pacer.add([SimRequest(16, tokens)], [listener])
    assert isinstance(handles, list)
    return listener, handles


def test_tokens_come_one_step_apart(pacer: EnginePacer, clock: HandClock) -> None:
    listener, _ = start(pacer, clock, 5)
    clock.to(101)
    assert listener.times == pytest.approx([100 + STEP_S * n for n in range(1, 6)])
    assert listener.end == "last"
    assert not pacer.model.busy


def test_small_lags_do_not_add_up(pacer: EnginePacer, clock: HandClock) -> None:
    clock.slow = 0.004
    listener, _ = start(pacer, clock, 100)
    clock.to(103)
    assert listener.times[-1] == pytest.approx(100 + 100 * STEP_S + clock.slow)
    assert pacer.lateness.steps == 0


def test_a_stalled_process_does_not_catch_up_and_says_so(pacer: EnginePacer, clock: HandClock) -> None:
    listener, _ = start(pacer, clock, 100)
    clock.to(100.1)
    clock.time = 102.1
    clock.to(104)
    assert pacer.lateness.steps == 1
    assert pacer.lateness.lost_s == pytest.approx(2.0, abs=0.02)
    assert listener.times[-1] == pytest.approx(103.0, abs=0.02)


def test_after_an_idle_time_the_next_request_starts_at_once(pacer: EnginePacer, clock: HandClock) -> None:
    start(pacer, clock, 3)
    clock.to(200)
    listener, _ = start(pacer, clock, 1)
    clock.to(201)
    assert listener.times == pytest.approx([200 + STEP_S])
    assert pacer.lateness.steps == 0


def test_gauges_follow_the_steps_and_an_abort_shows_within_one(pacer: EnginePacer, clock: HandClock) -> None:
    _, handles = start(pacer, clock, 50)
    clock.to(100.005)
    assert pacer.gauges.running == 0, "the first step has not ended"
    clock.to(100.105)
    assert pacer.gauges.running == 1
    assert pacer.abort(handles) == 1
    assert pacer.abort(handles) == 0
    clock.to(100.115)
    assert (pacer.gauges.running, pacer.gauges.kv_usage) == (0, 0.0)


def test_cut_tells_the_receivers_and_empties_the_engine(pacer: EnginePacer, clock: HandClock) -> None:
    listeners = [start(pacer, clock, 50)[0] for _ in range(12)]
    clock.to(100.05)
    pacer.cut_all()
    clock.to(101)
    assert {listener.end for listener in listeners} == {"cut"}
    assert (pacer.gauges.running, pacer.gauges.waiting, pacer.model.busy) == (0, 0, False)


def test_a_request_enters_whole_or_not_at_all(clock: HandClock) -> None:
    pacer = EnginePacer(EngineModel(EngineSpec(max_num_queued_reqs=2)), clock)
    three = [SimRequest(16, 4)] * 3
    assert pacer.add(three, [Listener(clock) for _ in three]) is Refusal.QUEUE_FULL
    assert not pacer.model.busy
    assert pacer.model.stats.refused_queue_full == 1


def test_a_stopped_pacer_stands_still(pacer: EnginePacer, clock: HandClock) -> None:
    listener, _ = start(pacer, clock, 50)
    clock.to(100.105)
    pacer.stop()
    clock.to(102)
    assert len(listener.times) == 10
