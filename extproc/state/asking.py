"""The ledger of one pool that is shared over Redis: asks with one call in flight, and goes on alone while it cannot ask.

Nothing a user does waits for Redis longer than a `Deadline`: an ask that has no answer by then is answered by `cutoff`, and
so are all that follow at once, until a call is answered in time again. The call itself goes on until `ABANDON_S`, so that a
slow moment costs no connection; what it answers then is not believed, and the next report corrects the account.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import structlog

from extproc.account import Report
from extproc.capacity import Ghosts
from extproc.clock import Clock
from extproc.cutoff import admissible_alone, alone
from extproc.errors import StateUnavailable
from extproc.model import NOTHING, Demand, Load, PoolState
from extproc.ports import Ask, Verdicts
from extproc.state.deadline import Deadline
from extproc.state.demand import pack_demand
from extproc.state.link import Line
from extproc.state.scripts import Answer, Keys, Script, pack_report, read_answer, read_state
from extproc.state.watch import Watch

ABANDON_S = 1.0
BELIEVED_S = 0.5
"""An answer older than this is not believed, however late our own process was to look: the entry may count as dead soon."""
HEARTBEAT_S = 0.5
PROBE_S = 0.05
AWAY_S = 1.0
"""Unheard for longer, or after a broken connection, a replica returns with care (`account`)."""
CUT_OFF_S = 0.25
"""Trouble for longer shows in the pool's state: P2 is refused on arrival, and this replica watches the engines itself."""
_ALONE_AGAIN_S = 0.1
_COUNTERS_S = 0.4
_LAST_WORD_S = 0.2
_ASK = Script("ask")
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    """An ask that has no answer yet."""

    ask: Ask
    reply: Callable[[Verdicts], None]
    at: float


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
        self._link = link
        self._keys = keys
        self._clock = clock
        self._on_lead = on_lead
        self._on_change = on_change
        self._watch = watch
        self._state = initial
        self._fingerprint = ""
        self._replicas = 1
        self._total = NOTHING
        self._in_use: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
        self._ghosts = Ghosts(clock.now())
        self._pending: _Pending | None = None
        self._due = asyncio.Event()
        self._calling = False
        self._seq = 0
        self._acked = 0
        self._heard_at = -math.inf
        self._broken = False
        self._went_alone = False
        self._trouble_at: float | None = None
        self._base = NOTHING
        self._cut_off = False
        self._counters_at = -math.inf
        self._demand: Callable[[float], Demand] | None = None
        self._wake: Callable[[], None] = lambda: None

    @property
    def state(self) -> PoolState:
        return self._alone(self._clock.now()) if self._cut_off else self._state

    @property
    def total(self) -> Load:
        return self._total

    @property
    def ghosts(self) -> Load:
        """This replica's ghost load now."""
        return self._ghosts.left(self._clock.now())

    @property
    def cut_off(self) -> bool:
        return self._cut_off

    @property
    def shared(self) -> bool:
        """A shared state is in force."""
        return bool(self._fingerprint)

    @property
    def replicas(self) -> int:
        """Replicas heard of lately, this one included."""
        return self._replicas

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        now = self._clock.now()
        if ask.mean_hold_s is not None:
            self._ghosts.hold_s = ask.mean_hold_s
        self._ghosts.add(ask.ghosts, now)
        self._in_use = ask.in_use
        self._pending = _Pending(ask, reply, now)
        if self._trouble_at is not None:
            self._answer_alone()
        else:
            self._due.set()

    def tells(self, demand: Callable[[float], Demand]) -> None:
        """Where the counters for the leader's controllers come from."""
        self._demand = demand

    def own(self, state: PoolState) -> None:
        """This replica's own decision: holds while it is cut off, and until it first hears a shared one."""
        if self._cut_off or not self._fingerprint:
            self._state, self._fingerprint = state, ""
            if self._cut_off:
                self._wake()

    def woken(self, message: str) -> None:
        """A message on the pool's channel: the replica whose turn it is, or `*` for a new state."""
        if message in ("*", self._replica):
            self._due.set()
            self._wake()

    async def run(self) -> None:
        """Calls when there is something to ask, and often enough to be heard. At the end it says what is still held."""
        try:
            while True:
                await self._until_due()
                await self._call(self._pending)
        finally:
            self._pending = None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last_word(), _LAST_WORD_S)

    async def _until_due(self) -> None:
        wait_s = HEARTBEAT_S if self._trouble_at is None else PROBE_S
        timer = self._clock.call_at(self._clock.now() + wait_s, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()
            self._due.clear()

    async def _call(self, pending: _Pending | None) -> None:
        report, counters = self._report(pending), self._counters()
        start = self._clock.now()
        deadline = Deadline(self._clock, self._late)
        keys = (self._keys.replicas, self._keys.facts, self._keys.demand)
        arguments = ("", self._replica, pack_report(report), self._keys.channel, counters, self._fingerprint)
        try:
            packed, state = await self._link.run(_ASK, keys, arguments, within_s=ABANDON_S)
            answer = read_answer(packed)
        except (StateUnavailable, msgspec.DecodeError, ValueError, TypeError) as error:
            kind = error.kind if isinstance(error, StateUnavailable) else "unreadable"
            self._watch.state_called(kind)
            self._broken = True
            self._late()
            return
        finally:
            deadline.cancel()
        took_s = self._clock.now() - start
        in_time = not deadline.passed and took_s <= BELIEVED_S
        self._watch.state_called("ok" if in_time else "late")
        self._learn(answer, state, report)
        if not in_time:
            self._late()
        elif pending is not None and pending is self._pending:
            self._settle(pending, answer)
        if in_time and self._trouble_at is not None:
            self._hear_again()

    def _report(self, pending: _Pending | None) -> Report:
        self._seq += 1
        away = self._clock.now() - self._heard_at
        heard = self._heard_at > -math.inf
        if away > 30:
            self._acked = 0  # so long unheard, an entry may be forgotten with nothing lost
        return Report(
            replica=self._replica,
            seq=self._seq,
            in_use=self._in_use,
            acked=self._acked,
            returning=self._cut_off or self._went_alone or (heard and (self._broken or away > AWAY_S)),
            ghosts=self.ghosts,
            hold_s=self._ghosts.hold_s,
            wants=pending.ask.wants if pending is not None and self._trouble_at is None else (),
        )

    def _counters(self) -> str:
        now = self._clock.now()
        if self._demand is None or now - self._counters_at < _COUNTERS_S:
            return ""
        self._counters_at = now
        return pack_demand(self._demand(now))

    def _learn(self, answer: Answer, state: bytes, report: Report) -> None:
        now = self._clock.now()
        self._acked, self._heard_at = report.seq, now
        self._broken = self._went_alone = False
        self._replicas = answer.replicas
        self._total = answer.total
        if state:
            self._fingerprint = answer.fingerprint
            self._state = read_state(state, at=now)
        elif answer.lead_s > 0:
            self._state = replace(self._state, at=now)
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

    def _late(self) -> None:
        """A call missed its deadline or failed: from here on this replica answers by itself."""
        now = self._clock.now()
        if self._trouble_at is None:
            self._trouble_at = now
            self._base = sum(self._in_use, self.ghosts)
        if not self._cut_off and now - self._trouble_at >= CUT_OFF_S:
            self._cut_off = True
            _log.warning("cut_off", pool=self._pool)
            self._on_change()
        if self._pending is not None:
            self._answer_alone()

    def _hear_again(self) -> None:
        self._trouble_at = None
        if self._cut_off:
            self._cut_off = False
            _log.warning("heard_again", pool=self._pool)
            self._on_change()
        self._wake()

    def _alone(self, now: float) -> PoolState:
        for_s = 0.0 if self._trouble_at is None else now - self._trouble_at
        return alone(self._state, self._base, replicas=self._replicas, for_s=for_s, hold_s=self._ghosts.hold_s)

    def _answer_alone(self) -> None:
        pending = self._pending
        if pending is None:
            return
        state, ghosts = self._alone(self._clock.now()), self.ghosts
        admitted = admissible_alone(pending.ask.wants, pending.ask.in_use, ghosts, state)
        self._total = sum((want.load for want in pending.ask.wants[:admitted]), sum(pending.ask.in_use, ghosts))
        refused = admitted < len(pending.ask.wants)
        self._went_alone = self._went_alone or admitted > 0
        self._reply(pending, Verdicts(admitted, state, self._total, _ALONE_AGAIN_S if refused else None))

    async def _last_word(self) -> None:
        if self._trouble_at is None:
            await self._call(None)
