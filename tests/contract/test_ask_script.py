"""The account and `ask.lua` side by side, on a real server with a clock of ours, and the promises that replicas share a limit by.

Replicas here are modelled as they are: each knows what runs on it, reports that, and believes only answers in time.
Calls are lost on either way, arrive late, twice, or after a younger one; replicas die, sleep and wake; limits fall.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from extproc.account import Account, Report, Settled
from extproc.model import NOTHING, Hold, Load, PoolState, Priority
from extproc.ports import Want
from extproc.state.scripts import Script, keys_of, pack_report, pack_state, read_answer
from tests.support import valkey

ASK = Script("ask")
START = 1_764_000_000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with valkey.running(tmp_path_factory.mktemp("v")) as running, running.client() as client:
        yield client


class Both:
    """The reference and the script, asked alike; an answer that differs is a failure."""

    def __init__(self, client: Redis, state: PoolState) -> None:
        self.client = client
        self.keys = keys_of("test", "pool")
        self.wakes = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.wakes.subscribe(self.keys.channel)
        self.wakes.get_message(timeout=1)
        client.flushall()
        self.account = Account()
        self.put(state)
        self.remember()

    def put(self, state: PoolState) -> None:
        self.account.state = state
        packed, fingerprint = pack_state(state)
        self.client.hset(self.keys.facts, mapping={"state": packed, "fingerprint": fingerprint})

    def remember(self) -> None:
        """What a server's replica has at this moment."""
        keys = (self.keys.replicas, self.keys.facts)
        self.copy = (copy.deepcopy(self.account), [(key, self.client.dump(key)) for key in keys])

    def fail_over(self) -> None:
        """To the replica, which knows nothing since `remember`; the limit is told again at once."""
        state, (account, dumps) = self.account.state, self.copy
        self.account = copy.deepcopy(account)
        self.client.flushall()
        for key, dump in dumps:
            if dump is not None:
                self.client.restore(key, 0, dump)
        assert state is not None
        self.put(state)

    def lose_all(self) -> None:
        """A flush, or a restart that came back empty."""
        state = self.account.state
        self.client.flushall()
        self.account = Account()
        assert state is not None
        self.put(state)

    def ask(self, now: float, report: Report) -> Settled | None:
        expected = self.account.ask(now, report)
        keys = self.keys
        arguments = (repr(now), report.replica, pack_report(report), keys.channel, "", "", report.policy)
        packed, _state = self.client.eval(ASK.text, 3, keys.replicas, keys.facts, keys.demand, *arguments)
        answer = read_answer(packed)
        message = (
            self.wakes.get_message(timeout=0)
            if expected is None or expected.wake is None
            else self.wakes.get_message(timeout=1)
        )
        if expected is None:
            assert (answer.accepted, message) == (0, None)
            return None
        assert (answer.accepted, answer.admitted, answer.replicas) == (1, expected.admitted, expected.replicas)
        assert answer.differing == expected.differing
        assert answer.again_s == pytest.approx(-1 if expected.again_s is None else expected.again_s)
        assert (answer.total_tokens, answer.total_slots) == pytest.approx((expected.total.tokens, expected.total.slots))
        assert (message["data"].decode() if message else None) == expected.wake
        return expected


@dataclass
class Replica:
    """What a process knows. `running`: (priority, tokens) of each open request; `late`: calls still on their way."""

    name: str
    running: list[tuple[Priority, int]] = field(default_factory=list)
    waiting: list[tuple[Priority, int, float]] = field(default_factory=list)
    seq: int = 0
    acked: int = 0
    late: list[Report] = field(default_factory=list)
    last_answer: float = -math.inf
    alive: bool = True
    reconnected: bool = False
    policy: str = "one"

    def report(self, now: float, *, alone: bool = False) -> Report:
        """`alone`: it says what it holds and asks for nothing; after that it returns."""
        returning = not alone and (self.reconnected or 1.0 < now - self.last_answer < math.inf)
        self.seq += 1
        self.waiting.sort(key=lambda waiter: (waiter[0], waiter[2]))
        loads = [NOTHING, NOTHING, NOTHING]
        for priority, tokens in self.running:
            loads[priority] += Load(tokens, 1)
        wants = [Want(priority, Load(tokens, 1), now - since) for priority, tokens, since in self.waiting[:8]]
        return Report(
            replica=self.name,
            seq=self.seq,
            in_use=(loads[0], loads[1], loads[2]),
            acked=self.acked,
            alone=alone,
            returning=returning,
            policy=self.policy,
            hold=Hold(1000.0),
            wants=() if alone else wants,
        )

    def hear(self, now: float, report: Report, answer: Settled | None) -> None:
        if answer is None:
            return
        self.acked = report.seq
        self.last_answer = now
        self.reconnected = report.alone
        for want, waiter in zip(report.wants[: answer.admitted], list(self.waiting), strict=False):
            assert want.load.tokens == waiter[1]
            self.waiting.remove(waiter)
            self.running.append((waiter[0], waiter[1]))


action = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 2), st.sampled_from(Priority), st.integers(1, 4)),
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "lost", "lose-answer", "delay", "deliver", "repeat", "alone", "policy"]),
        st.integers(0, 2),
    ),
    st.tuples(st.just("end"), st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.01, 0.3, 0.6, 2.5])),
    st.tuples(st.just("limit"), st.integers(0, 8)),
    st.tuples(st.sampled_from(["sleep", "wake"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["remember", "fail over", "flush"])),
)


def limited(slots: float, tokens: float = 24) -> PoolState:
    limit = Load(tokens, slots)
    return PoolState(limits=(limit, limit, Load(tokens, max(0, slots - 1))), reserved=(Load(0, 1), Load(0, 1), NOTHING))


class World:
    """Three replicas before one account. Asleep replicas keep their requests running; nobody counts them but we."""

    def __init__(self, both: Both, slots: int) -> None:
        self.both = both
        self.now = START
        self.replicas = [Replica(name) for name in ("a", "b", "c")]
        self.slots = slots
        self.most = float(slots)
        for replica in self.replicas:
            self.call(replica)
        self.wait(2.1)

    def wait(self, for_s: float) -> None:
        """Time goes in steps, in which whoever is awake makes itself heard, as processes do."""
        while for_s > 0:
            step = min(0.5, for_s)
            self.now += step
            for_s -= step
            for replica in self.replicas:
                if replica.alive and self.now - replica.last_answer >= 0.5:
                    self.call(replica)

    def call(self, replica: Replica) -> None:
        report = replica.report(self.now)
        replica.hear(self.now, report, self.both.ask(self.now, report))

    def step(self, what: tuple[object, ...]) -> None:
        match what:
            case ("arrive", int(who), Priority() as priority, int(count)):
                self.replicas[who].waiting += [(priority, 1 + i % 3, self.now - i / 1000) for i in range(count)]
                if self.replicas[who].alive:
                    self.call(self.replicas[who])
            case ("wait", float(for_s)):
                self.wait(for_s)
            case ("limit", int(slots)):
                self.both.put(limited(slots))
                self.slots = slots
            case ("remember",):
                self.both.remember()
            case ("fail over" | "flush" as how,):
                self.lose(how)
            case ("sleep" | "wake" as how, int(who)):
                self.replicas[who].alive = how == "wake"
            case ("end", int(who), int(which)):
                running = self.replicas[who].running
                if running:
                    running.pop(which % len(running))
            case (str(how), int(who)) if self.replicas[who].alive:
                self.send(how, self.replicas[who])

    def lose(self, how: str) -> None:
        """Connections break with a failover, and calls on their way with them. Who sleeps now is outside the promise."""
        if not all(replica.alive for replica in self.replicas):
            return
        for replica in self.replicas:
            replica.late.clear()
            replica.reconnected = how == "fail over"
        if how == "flush":
            self.both.lose_all()
        else:
            self.both.fail_over()

    def send(self, how: str, replica: Replica) -> None:
        if how == "ask":
            self.call(replica)
            return
        if how == "deliver":
            for report in replica.late:
                self.both.ask(self.now, report)  # executed late; nobody hears the answer
            replica.late.clear()
            return
        if how == "policy":
            replica.policy = "two"
            return
        report = replica.report(self.now, alone=how == "alone")
        if how == "alone":
            replica.hear(self.now, report, self.both.ask(self.now, report))
        elif how == "delay":
            replica.late.append(report)
        elif how == "lose-answer":
            self.both.ask(self.now, report)
        elif how == "repeat":
            answer = self.both.ask(self.now, report)
            assert self.both.ask(self.now, report) is None
            replica.hear(self.now, report, answer)

    @property
    def open(self) -> Load:
        return Load(
            sum(tokens for replica in self.replicas for _, tokens in replica.running),
            sum(len(replica.running) for replica in self.replicas),
        )


@pytest.mark.parametrize("hold", [Hold(3.0, 2.9), Hold(3.0, 0.1), Hold(30.0, 20.0), Hold()])
def test_a_dead_replicas_load_fades_alike(server: Redis, hold: Hold) -> None:
    both = Both(server, limited(8))
    held = (NOTHING, Load(12, 6), NOTHING)
    both.ask(START, Report("dead", 1, held, hold=hold))
    for seq, silent_s in enumerate((0.5, 1.9, 2.1, 2.95, 3.5, 6.0, 19.0, 25.0, 61.0, 200.0), start=1):
        both.ask(START + silent_s, Report("alive", seq, (NOTHING, NOTHING, NOTHING)))


@given(slots=st.integers(1, 8), actions=st.lists(action, min_size=10, max_size=60))
@settings(max_examples=50)
def test_what_is_open_never_exceeds_the_limit_whatever_is_lost_late_or_repeated(
    server: Redis, slots: int, actions: list[tuple[object, ...]]
) -> None:
    world = World(Both(server, limited(slots)), slots)
    bound = float(slots)
    for what in actions:
        before = world.open.slots
        world.step(what)
        # a limit that falls ends nobody: then what was open may stay, and nobody comes on top
        bound = max(float(world.slots), min(bound, before))
        assert world.open.slots <= bound
        assert world.open.tokens <= 24
    world.wait(0.5)
    entries = world.both.account.entries
    for replica in world.replicas:
        world.call(replica)
        assert sum(entries[replica.name].in_use, NOTHING).slots == len(replica.running)
