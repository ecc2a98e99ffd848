"""The shared ledger on a line that does anything a store can do: whatever comes, every ask has its one answer in time, and the
store hears of this replica often enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.care import RAMP_S
from extproc.clock import LoopClock
from extproc.errors import StateUnavailable
from extproc.model import NOTHING, Demand, Finished, Hold, Latency, Load, PoolState, Priority
from extproc.ports import Ask, Verdicts, Want
from extproc.sim.virtual_time import run_virtual
from extproc.sim.world.store import Uncounted, VirtualStore
from extproc.state.asking import ABANDON_S, HEARTBEAT_S, PROBE_S, SharedLedger
from extproc.state.call import Argument, Heard
from extproc.state.deadline import DEADLINE_S
from extproc.state.scripts import Script, keys_of, pack_state
from extproc.state.standing import CUT_OFF_S
from tests.support.pools import limited
from tests.support.virtual import virtual

A_LITTLE_S = 1e-6
REPLICA = "a"
KEYS = keys_of("test", "main")
NEVER = float("inf")


class Said(StrEnum):
    """How a call ends."""

    ANSWER = "answer"
    FAILURE = "failure"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class End:
    """Of one call. `after_s`: NEVER is as long as its maker waits for it."""

    said: Said
    after_s: float


class Line:
    """Implements `state.link.Line` over the simulator's store. `ends`: of the calls, in order; those that follow are answered
    at once."""

    def __init__(self, store: VirtualStore, ends: Sequence[End]) -> None:
        self._store = store
        self._ends = list(ends)
        self.flying = self.most_flying = 0
        self.pauses: list[tuple[bool, float]] = []
        """Between one call and the next: whether the first had a good answer in time, and seconds."""
        self._ended: tuple[bool, float] | None = None

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        end = self._ends.pop(0) if self._ends else End(Said.ANSWER, 0.0)
        loop = self._store.loop
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        if self._ended is not None:
            well, at = self._ended
            self.pauses.append((well, loop.time() - at))
        open_ = True

        def give_up() -> None:
            nonlocal open_
            self.flying -= open_
            open_ = False
            timer.cancel()

        def tell() -> None:
            give_up()
            self._ended = end.said is Said.ANSWER and end.after_s <= DEADLINE_S, loop.time()
            heard(said())

        def said() -> object:
            if end.after_s >= within_s:
                return StateUnavailable("timeout", "no answer in time")
            match end.said:
                case Said.FAILURE:
                    return StateUnavailable("connection", "refused")
                case Said.UNREADABLE:
                    return b"\xc1", b"\xc1"
                case Said.ANSWER:
                    return answer

        answer = self._store.run(script, keys, arguments) if end.said is Said.ANSWER else None
        timer = loop.call_later(min(end.after_s, within_s), tell)
        return give_up

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        raise NotImplementedError


class Asker:
    """Asks as a dispatcher does: one at a time, again in the answer if something came up meanwhile, and when it is woken."""

    def __init__(self, ledger: SharedLedger, clock: LoopClock) -> None:
        self.ledger = ledger
        self.waits_s: list[float] = []
        self.asked = 0
        self._clock = clock
        self._asking = self._dirty = self._settling = False
        ledger.on_wake(self.ask)

    def ask(self) -> None:
        self._dirty = True
        if self._settling:
            return
        self._settling = True
        while self._dirty and not self._asking:
            self._dirty, self._asking = False, True
            self.asked += 1
            self._ask_one(self._clock.now())
        self._settling = False

    def _ask_one(self, at: float) -> None:
        def reply(_: Verdicts) -> None:
            self.waits_s.append(self._clock.now() - at)
            self._asking = False
            if self._dirty:
                self.ask()

        wants = [Want(Priority.P1, Load(10, 1))]
        self.ledger.ask(Ask((NOTHING, NOTHING, NOTHING), wants, hold=Hold(5.0)), reply)


class Event(StrEnum):
    """What happens to the ledger meanwhile."""

    ASK = "ask"
    WOKEN = "woken"
    NEW_STATE = "new state"
    OWN_STATE = "own state"


_SECONDS = st.sampled_from([0.0, 0.001, DEADLINE_S, DEADLINE_S + 1e-9, 0.03, 0.1, 0.3, 0.6, ABANDON_S]) | st.floats(
    0, 1.2
)
ENDS = st.lists(st.builds(End, st.sampled_from(Said), _SECONDS | st.just(NEVER)), max_size=30)
EVENTS = st.lists(st.tuples(st.sampled_from(Event), _SECONDS), max_size=30)


def ledger_on(
    line: Line, clock: LoopClock, *, replica: str = REPLICA, on_change: Callable[[], None] = lambda: None
) -> SharedLedger:
    return SharedLedger(
        "main",
        replica,
        link=line,
        keys=KEYS,
        initial=PoolState(limits=(NOTHING,) * 3),
        clock=clock,
        on_lead=lambda _: None,
        on_change=on_change,
        watch=Uncounted(),
    )


@dataclass(slots=True)
class Seen:
    """What became of it all."""

    line: Line
    asker: Asker


async def run_through(ends: Sequence[End], events: Sequence[tuple[Event, float]], *, starts_after: int) -> Seen:
    """`starts_after`: so many events the ledger begins to run."""
    loop = asyncio.get_running_loop()
    bugs: list[object] = []
    loop.set_exception_handler(lambda _, context: bugs.append(context))
    clock, store = LoopClock(loop), VirtualStore(loop)
    packed, fingerprint = pack_state(limited(4))
    state = ("", REPLICA, 0, 1e6, packed, fingerprint, KEYS.channel, 0)
    store.run(Script("publish"), (KEYS.facts, KEYS.demand), state)
    line = Line(store, ends)
    ledger = ledger_on(line, clock, on_change=lambda: asker.ask())
    asker = Asker(ledger, clock)
    running: asyncio.Task[None] | None = None
    for number, (event, wait_s) in enumerate(events):
        if number == starts_after:
            running = asyncio.ensure_future(ledger.run())
        match event:
            case Event.ASK:
                asker.ask()
            case Event.WOKEN:
                ledger.woken(REPLICA)
            case Event.NEW_STATE:
                ledger.woken("*")
            case Event.OWN_STATE:
                ledger.own(limited(2))
        await asyncio.sleep(wait_s)
    running = running or asyncio.ensure_future(ledger.run())
    await asyncio.sleep(len(ends) * (ABANDON_S + HEARTBEAT_S) + 3.0)  # until the line has been well for a while
    assert not running.done()
    assert not ledger.cut_off
    assert not bugs
    running.cancel()
    await asyncio.wait({running})
    return Seen(line, asker)


@settings(max_examples=200)
@given(ends=ENDS, events=EVENTS, starts_after=st.integers(0, 3))
def test_every_ask_is_answered_once_and_in_time_whatever_the_line_does(
    ends: list[End], events: list[tuple[Event, float]], starts_after: int
) -> None:
    seen = run_virtual(run_through(ends, events, starts_after=starts_after))
    line, asker = seen.line, seen.asker
    assert len(asker.waits_s) == asker.asked
    before_s = sum(wait_s for _, wait_s in events[:starts_after])
    assert all(wait_s <= DEADLINE_S + before_s + A_LITTLE_S for wait_s in asker.waits_s)
    assert line.most_flying == 1
    assert all(pause_s <= (HEARTBEAT_S if well else PROBE_S) + A_LITTLE_S for well, pause_s in line.pauses)
    assert line.flying == 0


class Bug(Exception):
    """Ours."""


class BuggyTraffic:
    """Implements `ports.TrafficSource`."""

    finished = Finished()

    def demand(self, now: float) -> Demand:
        raise Bug

    def take_latencies(self) -> tuple[Latency, ...]:
        return ()


def fail(_: Verdicts) -> None:
    raise Bug


@virtual
async def test_a_bug_in_what_a_heartbeat_says_ends_the_ledger_instead_of_its_heartbeats() -> None:
    loop = asyncio.get_running_loop()
    ledger = ledger_on(Line(VirtualStore(loop), ()), LoopClock(loop))
    running = asyncio.ensure_future(ledger.run())
    await asyncio.sleep(0.1)
    ledger.tells(BuggyTraffic())
    with pytest.raises(Bug):
        await asyncio.wait_for(running, 1)


@virtual
async def test_a_bug_in_who_hears_an_answer_made_alone_ends_the_ledger() -> None:
    loop = asyncio.get_running_loop()
    ledger = ledger_on(Line(VirtualStore(loop), [End(Said.ANSWER, NEVER)]), LoopClock(loop))
    ledger.ask(Ask((NOTHING, NOTHING, NOTHING)), fail)
    with pytest.raises(Bug):
        await asyncio.wait_for(ledger.run(), DEADLINE_S * 2)


@virtual
async def test_a_silent_store_cuts_off_who_asks_before_the_call_to_it_is_given_up() -> None:
    loop = asyncio.get_running_loop()
    ledger = ledger_on(Line(VirtualStore(loop), [End(Said.ANSWER, NEVER)]), LoopClock(loop))
    running = asyncio.ensure_future(ledger.run())
    while not ledger.cut_off:
        ledger.ask(Ask((NOTHING, NOTHING, NOTHING)), lambda _: None)
        await asyncio.sleep(2 * DEADLINE_S)
    assert loop.time() < 2 * CUT_OFF_S
    running.cancel()
    await asyncio.wait({running})


class Waiter:
    """One who waits for `slots`, and asks again when the ledger says so and never otherwise."""

    def __init__(self, ledger: SharedLedger, clock: LoopClock, *, slots: float) -> None:
        self.admitted = False
        self._ledger = ledger
        self._clock = clock
        self._want = Want(Priority.P1, Load(10, slots))
        ledger.on_wake(self.ask)
        self.ask()

    def ask(self) -> None:
        if not self.admitted:
            self._ledger.ask(Ask((NOTHING, NOTHING, NOTHING), [self._want]), self._hear)

    def _hear(self, verdicts: Verdicts) -> None:
        self.admitted = verdicts.admitted > 0
        if verdicts.ask_again_s is not None:
            self._clock.call_at(self._clock.now() + verdicts.ask_again_s, self.ask)


@asynccontextmanager
async def running_on(store: VirtualStore, replica: str = REPLICA) -> AsyncIterator[SharedLedger]:
    """Nothing is lost but what is said to all."""
    ledger = ledger_on(Line(store, ()), LoopClock(store.loop), replica=replica)
    running = asyncio.ensure_future(ledger.run())
    await asyncio.sleep(HEARTBEAT_S + A_LITTLE_S)
    yield ledger
    running.cancel()
    await asyncio.wait({running})


def put(store: VirtualStore, state: PoolState) -> None:
    """As a leader would, whose message is lost."""
    packed, fingerprint = pack_state(state)
    arguments = ("", "leader", 0, 0.0, packed, fingerprint, KEYS.channel, 0)
    store.run(Script("publish"), (KEYS.facts, KEYS.demand), arguments)


@virtual
async def test_who_waits_hears_of_a_new_state_also_where_its_message_was_lost() -> None:
    store = VirtualStore(asyncio.get_running_loop())
    put(store, limited(1))
    async with running_on(store) as ledger:
        await asyncio.sleep(RAMP_S)
        waiter = Waiter(ledger, LoopClock(store.loop), slots=2)
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert not waiter.admitted
        put(store, limited(2))
        await asyncio.sleep(HEARTBEAT_S + A_LITTLE_S)
        assert waiter.admitted


@virtual
async def test_a_replica_that_joins_passes_nobody_who_waits_at_one_that_was_by_itself() -> None:
    store = VirtualStore(asyncio.get_running_loop())
    put(store, limited(1))
    async with running_on(store) as ledger:
        await asyncio.sleep(RAMP_S)
        Waiter(ledger, LoopClock(store.loop), slots=2)
        await asyncio.sleep(2 * HEARTBEAT_S)
        async with running_on(store, "b") as joined:
            await asyncio.sleep(HEARTBEAT_S)
            newcomer = Waiter(joined, LoopClock(store.loop), slots=1)
            await asyncio.sleep(A_LITTLE_S)
            assert not newcomer.admitted
