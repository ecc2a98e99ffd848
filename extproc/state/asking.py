"""The ledger of one pool that is shared over Redis: asks with one call in flight, and goes on alone while it cannot ask.

An ask is written, and its answer acted upon, where they come up: through tasks either would wait for the event loop once more,
behind whatever a burst has put there.

Nothing a user does waits for Redis longer than a `Deadline`: an ask that has no answer by then is answered by `Standing`, and
so are all that follow at once, until a call is answered in time again. The call itself goes on until `ABANDON_S`, so that a
slow moment costs no connection; what it answers then is not believed, and the next report corrects the account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from extproc.account import Report
from extproc.capacity import Ghosts
from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import NOTHING, Load, PoolState
from extproc.ports import Ask, TrafficSource, Verdicts, Want
from extproc.state.call import Argument
from extproc.state.deadline import Deadline
from extproc.state.link import Line, run
from extproc.state.reports import Reports
from extproc.state.scripts import Answer, Keys, Script, pack_report, read_asked
from extproc.state.standing import Standing
from extproc.state.turns import Turns
from extproc.state.watch import Watch

ABANDON_S = 1.0
BELIEVED_S = 0.5
"""An answer older than this is not believed, however late our own process was to look: the entry may count as dead soon."""
HEARTBEAT_S = 0.5
PROBE_S = 0.05
_LAST_WORD_S = 0.2
_LATE = StateUnavailable("late", "no answer in time")
_ASK = Script("ask")
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    """An ask that has no answer yet."""

    ask: Ask
    reply: Callable[[Verdicts], None]
    at: float


@dataclass(slots=True)
class _Call:
    """A call in flight. `pending`: the ask in it, if there was one; None: it only reports."""

    pending: _Pending | None
    report: Report
    at: float
    deadline: Deadline


class SharedLedger:
    """Implements `ports.Ledger`. `on_lead` hears with each answer what is left of the pool's lead; `on_change` is called
    when this replica is cut off or hears again."""

    def __init__(
        self,
        pool: str,
        replica: str,
        *,
        link: Line,
        keys: Keys,
        initial: PoolState,
        clock: Clock,
        on_lead: Callable[[float], None],
        on_change: Callable[[], None],
        watch: Watch,
    ) -> None:
        self._pool = pool
        self._replica = replica
        self._standing = Standing()
        self._reports = Reports(replica)
        self._link = link
        self._all_keys = (keys.replicas, keys.facts, keys.demand)
        self._channel = keys.channel
        self._clock = clock
        self._on_lead = on_lead
        self._on_change = on_change
        self._watch = watch
        self._state = initial
        self._fingerprint = ""
        self._replicas = 1
        self._differing = 0
        self._total = NOTHING
        self._in_use: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
        self._ghosts = Ghosts(clock.now())
        self._trouble = _LATE
        self._pending: _Pending | None = None
        self._turns = Turns(clock, begin=self._begin, pause_s=self._pause_s)
        self._wake: Callable[[], None] = lambda: None

    @property
    def state(self) -> PoolState:
        return self._alone(self._clock.now()) if self.cut_off else self._state

    @property
    def total(self) -> Load:
        return self._total

    @property
    def ghosts(self) -> Load:
        """This replica's ghost load now."""
        return self._ghosts.left(self._clock.now())

    @property
    def cut_off(self) -> bool:
        return self._standing.cut_off

    @property
    def trouble(self) -> str:
        """The kind of what last went wrong with a call."""
        return self._trouble.kind

    @property
    def shared(self) -> bool:
        """A shared state is in force."""
        return bool(self._fingerprint)

    @property
    def replicas(self) -> int:
        """Replicas heard of lately, this one included."""
        return self._replicas

    @property
    def differing(self) -> int:
        """Of the replicas, how many go by another policy."""
        return self._differing

    def goes_by(self, policy: str) -> None:
        """The hash of the policy in force here."""
        self._reports.policy = policy

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        now = self._clock.now()
        self._ghosts.hold = ask.hold or self._ghosts.hold
        self._ghosts.add(ask.ghosts, now)
        self._in_use = ask.in_use
        self._pending = _Pending(ask, reply, now)
        if self._standing.alone:
            self._go_alone()
        else:
            self._turns.say()

    def at_once(self, _ask: Ask) -> Verdicts | None:
        """The others have a say in everything."""
        return None

    def tells(self, traffic: TrafficSource) -> None:
        """Where the counters for the leader's controllers come from."""
        self._reports.traffic = traffic

    def own(self, state: PoolState) -> None:
        """This replica's own decision: holds while it is cut off, and until it first hears a shared one."""
        if self.cut_off or not self._fingerprint:
            self._state, self._fingerprint = state, ""
            if self.cut_off:
                self._wake()

    def woken(self, message: str) -> None:
        """A message on the pool's channel: the replica whose turn it is, or `*` for a new state."""
        if message in ("*", self._replica):
            self._wake_and_say()

    async def run(self) -> None:
        """Calls when there is something to ask, and often enough to be heard. At the end it says what is still held."""
        try:
            await self._turns.run()
        finally:
            self._pending = None
            with suppress(TimeoutError, StateUnavailable):
                await asyncio.wait_for(self._last_word(), _LAST_WORD_S)

    def _pause_s(self) -> float:
        return PROBE_S if self._standing.alone else HEARTBEAT_S

    def _begin(self) -> Callable[[], None]:
        start, pending = self._clock.now(), self._pending
        report = self._report(start, () if pending is None else pending.ask.wants)
        arguments = self._arguments(report)
        deadline = Deadline(self._clock, lambda: self._turns.guarded(self._miss))
        call = _Call(pending, report, start, deadline)

        def heard(said: object) -> None:
            deadline.cancel()
            self._turns.ended(lambda: self._take(call, said))

        abandon = self._link.call(_ASK, self._all_keys, arguments, within_s=ABANDON_S, heard=heard)

        def give_up() -> None:
            deadline.cancel()
            abandon()

        return give_up

    def _wake_and_say(self) -> None:
        """Whoever is woken mostly asks, and that says it all."""
        before = self._turns.begun
        self._wake()
        if self._turns.begun == before:
            self._turns.say()

    def _take(self, call: _Call, said: object) -> None:
        now = self._clock.now()
        read = said if isinstance(said, StateUnavailable) else read_asked(said, at=now)
        if isinstance(read, StateUnavailable):
            self._trouble = read
            self._watch.state_called(self.trouble)
            self._standing.broken()
            self._go_alone()
            return
        answer, told = read
        news = told is not None or answer.replicas != self._replicas
        in_time = not call.deadline.passed and now - call.at <= BELIEVED_S
        self._watch.state_called("ok" if in_time else "late")
        self._standing.heard(now, in_time=in_time, said_alone=call.report.alone)
        self._reports.answered(call.report)
        self._learn(answer, told)
        if not in_time:
            self._miss()
        elif call.pending is not None and call.pending is self._pending:
            self._settle(call.pending, answer)
        if in_time and self._standing.alone:
            self._hear_again()
        elif news and call.pending is None:
            self._wake()

    def _report(self, now: float, wants: Sequence[Want]) -> Report:
        return self._reports.next(now, self._standing, in_use=self._in_use, ghosts=self._ghosts, wants=wants)

    def _arguments(self, report: Report) -> tuple[Argument, ...]:
        packed, counters = pack_report(report), self._reports.counters(self._clock.now())
        return "", self._replica, packed, self._channel, counters, self._fingerprint, report.policy

    def _learn(self, answer: Answer, told: PoolState | None) -> None:
        self._replicas, self._differing = answer.replicas, answer.differing
        self._total = answer.total
        if told is not None:
            self._state, self._fingerprint = told, answer.fingerprint
        elif answer.lead_s > 0:
            self._state = replace(self._state, at=self._clock.now())
        self._on_lead(answer.lead_s)

    def _settle(self, pending: _Pending, answer: Answer) -> None:
        again_s = answer.again_s if answer.again_s >= 0 else None
        self._reply(pending, Verdicts(answer.admitted, self._state, answer.total, again_s))

    def _reply(self, pending: _Pending, verdicts: Verdicts) -> None:
        self._pending = None
        self._watch.state_answered(self._clock.now() - pending.at)
        in_use = list(pending.ask.in_use)
        for want in pending.ask.wants[: verdicts.admitted]:
            in_use[want.priority] += want.load
        self._in_use = (in_use[0], in_use[1], in_use[2])
        pending.reply(verdicts)

    def _miss(self) -> None:
        self._trouble = _LATE
        self._go_alone()

    def _go_alone(self) -> None:
        """A call has missed its deadline or failed: this replica answers by itself, and is cut off once that has lasted."""
        if self._standing.late(self._clock.now(), sum(self._in_use, self.ghosts)):
            _log.warning("cut_off", pool=self._pool, kind=self.trouble, error=str(self._trouble))
            self._on_change()
        if (pending := self._pending) is not None:
            verdicts = self._standing.answer(pending.ask, self.ghosts, self._alone(self._clock.now()))
            self._total = verdicts.total
            self._reply(pending, verdicts)

    def _hear_again(self) -> None:
        """The next call asks again, or says at least that this replica is alone no more: others wait for that."""
        if self._standing.back():
            _log.warning("heard_again", pool=self._pool)
            self._on_change()
        self._wake_and_say()

    def _alone(self, now: float) -> PoolState:
        return self._standing.state(self._state, now, replicas=self._replicas, hold_s=self._ghosts.hold.mean_s)

    async def _last_word(self) -> None:
        if not self._standing.alone:
            arguments = self._arguments(self._report(self._clock.now(), ()))
            await run(self._link, _ASK, self._all_keys, arguments, within_s=_LAST_WORD_S)
