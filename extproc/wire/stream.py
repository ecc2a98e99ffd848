"""One ext_proc stream, from its first message to its end: glue between gRPC, `session` and admission.

What a stream holds (a ticket, a place in a queue) is given back in `finish`, which runs whatever happened; it is
synchronous, so nothing can cancel it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, assert_never

import grpc

from extproc.admission import Candidate, Pass
from extproc.model import End, Outcome, Priority, Rejection
from extproc.ports import WireEvent
from extproc.request import HeaderChanges, RequestHead
from extproc.tickets import Ticket, Waiting
from extproc.wire import codec, events
from extproc.wire.events import Kind, Received
from extproc.wire.fate import may_run_on
from extproc.wire.owed import Owed
from extproc.wire.refusal import refusal
from extproc.wire.sampling import Sampling
from extproc.wire.session import Arrive, Close, Continue, Decide, Phase, RunsUndecided, Session
from extproc.wire.shared import Context, Gate, Shared

OVERRIDE_MARGIN_S = 5.0
"""Added to the longest wait when Envoy is told how long to wait, up to its maximum: our answer must be first, also after
Envoy or its machine stood still for a while."""
SOON_S = 0.03
"""A verdict that comes sooner, as after a round trip to the shared state, costs no message to Envoy."""
SOON_SHARE = 0.1
"""Of Envoy's patience with us: so short a part of it may pass before it is told to wait longer."""
_LINGER_S = 0.05
"""Envoy half-closes a stream and resets it right after. A handler that returns between the two makes grpc send a status
on a cancelled call, which is reported to leak memory there; so its end waits for the reset, which does not always come."""


class Stream:
    """Call `run`, and `finish` afterwards in any case."""

    def __init__(self, shared: Shared, context: Context) -> None:
        self._shared = shared
        self._context = context
        self._session = Session()
        self._owed = Owed()
        self._peer = context.peer()
        self._timeout_s: float = shared.envoy().message_timeout_s
        self._gate: Gate | None = None
        self._candidate: Candidate | None = None
        self._waiting: Waiting | None = None
        self._waited_from = 0.0
        self._ticket: Ticket | None = None
        self._request_id = ""
        self._protocol = events.Protocol()
        self._ahead: asyncio.Task[object] | None = None
        self._event_stream_at: float | None = None
        self._sampling: Sampling | None = None
        self._broken = False
        self._finished = False
        shared.connections.watch(self._peer, shared.clock.now())

    async def run(self) -> None:
        """Returns when the stream has ended, or when it is best ended by us."""
        while await self._step():
            if self._broken:
                return
            if self._waiting is not None:
                await self._await_verdict(self._waiting)
        self.finish()
        await asyncio.sleep(_LINGER_S)

    async def let_pass(self) -> None:
        """After a bug of ours: the request goes on as if we were not there."""
        self._broken = True
        if self._session.phase is Phase.DECIDING and self._waiting is None:
            await self._write(codec.CONTINUE[self._session.owed])

    # -- messages -------------------------------------------------------------------------------------------------

    async def _step(self) -> bool:
        """One message; False at the end. Nothing of it is kept: a body must not stay in memory while its request waits."""
        data = await (self._context.read() if self._ahead is None else self._next(self._ahead))
        if not isinstance(data, bytes):
            return False
        await self._handle(codec.decode(data))
        return True

    async def _next(self, ahead: asyncio.Task[object]) -> object:
        await asyncio.wait({ahead})  # not awaited itself: that would cancel the read together with this handler
        self._ahead = None
        return ahead.result()

    async def _handle(self, received: Received) -> None:
        now = self._shared.clock.now()
        if received.protocol is not None:
            self._protocol = received.protocol
            self._shared.modes.saw_protocol(received.protocol)
        if self._protocol.observing:
            return
        self._owed.start(self._shared.pulse.dates_from(now), self._timeout_s)
        command = self._session.receive(received.event)
        match command:
            case Arrive(head):
                await self._arrive(head)
            case Decide(body):
                if body is not None:
                    self._shared.modes.saw_body()
                await self._decide(body)
            case Continue(kind, unexpected):
                if unexpected:
                    self._shared.observer.wire(WireEvent.UNEXPECTED_MESSAGE)
                await self._continue(kind, received.event, unexpected=unexpected)
                if self._sampling is not None:
                    self._sampling.saw(received.event, now)  # after the reply: nobody waits for this
            case RunsUndecided(kind):
                self._shared.modes.missed_body(now)
                self._adopt()
                await self._continue(kind, received.event, unexpected=True)
            case Close():
                self._shared.observer.wire(WireEvent.UNEXPECTED_MESSAGE)
                self._broken = True
            case _ as never:
                assert_never(never)

    async def _continue(self, kind: Kind, event: events.Event, *, unexpected: bool) -> None:
        duplex = self._protocol.request_duplex if kind is Kind.REQUEST_BODY else self._protocol.response_duplex
        if duplex and isinstance(event, events.RequestBody | events.ResponseBody):
            await self._reply(codec.echo(kind, event.data, end_of_stream=event.end_of_stream))
            return
        if not isinstance(event, events.ResponseHeaders) or not event.event_stream or event.end_of_stream:
            await self._reply(codec.CONTINUE[kind])
            return
        await self._reply(codec.SAMPLE if not unexpected and self._sample(event) else codec.CONTINUE[kind])
        self._event_stream_at = self._shared.clock.now()

    # -- latency --------------------------------------------------------------------------------------------------

    def _sample(self, event: events.ResponseHeaders) -> bool:
        """Whether this answer is the one of its engine that is sampled. Takes the place if so."""
        ticket, shared = self._ticket, self._shared
        if ticket is None or not ticket.worth_timing or event.status != HTTPStatus.OK:
            return False
        if self._protocol.ignores_override or not shared.modes.bodies_come(shared.clock.now()):
            return False
        if not shared.samples.take(event.upstream):
            return False
        self._sampling = Sampling(ticket, event.upstream, shared.samples)
        self._session.ask_chunks()
        return True

    # -- the verdict ----------------------------------------------------------------------------------------------

    async def _arrive(self, head: RequestHead) -> None:
        self._request_id = head.request_id
        self._gate = self._shared.gate()
        answer = self._gate.arrive(head)
        if not isinstance(answer, Candidate):
            await self._answer(answer, waited_s=0.0)
            return
        self._candidate = answer
        asks = answer.wants_body and not head.bodiless and not self._protocol.ignores_override
        if asks and self._shared.modes.may_ask_body(self._shared.clock.now()):
            self._session.ask_body()
            await self._reply(codec.ASK_BODY)
        else:
            await self._decide(None)

    async def _decide(self, body: bytes | None) -> None:
        answer = self._ask_gate(body)
        if isinstance(answer, Waiting):
            self._waiting = answer  # `run` waits, when the message is forgotten
        else:
            await self._answer(answer, waited_s=0.0)

    async def _await_verdict(self, waiting: Waiting) -> None:
        self._waited_from = self._shared.clock.now()
        if not await self._wait(waiting):
            return
        self._waiting = None
        waited_s = self._shared.clock.now() - self._waited_from
        self._shared.modes.waited(waited_s, self._timeout_s, cut=False)
        await self._answer(waiting.verdict.result(), waited_s=waited_s)

    def _ask_gate(self, body: bytes | None) -> Ticket | Waiting | Rejection | Pass:
        candidate, self._candidate = self._candidate, None
        if candidate is None or self._gate is None:
            raise AssertionError("a decision without a candidate")
        return self._gate.decide(candidate, body)

    async def _wait(self, waiting: Waiting) -> bool:
        """True when the verdict is there; False when the stream ended before."""
        ahead = self._read_ahead()
        either: set[asyncio.Future[Any]] = {ahead, waiting.verdict}
        if waiting.soon:
            soon_s = min(SOON_S, SOON_SHARE * self._timeout_s)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=soon_s)
        if not (waiting.verdict.done() or _ended(ahead)):
            envoy = self._shared.envoy()
            override_s = min(waiting.longest_wait_s + OVERRIDE_MARGIN_S, envoy.max_message_timeout_s)
            self._owed.extend(self._shared.clock.now(), override_s, self._timeout_s)
            await self._write(codec.override_timeout(override_s))
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if _ended(ahead):
            return False
        await asyncio.wait({waiting.verdict})  # a message that came meanwhile is handled after the verdict
        return True

    def _read_ahead(self) -> asyncio.Task[object]:
        """Reads on while a request waits: where Envoy only half-closes, this alone tells that the client has left."""
        task = asyncio.ensure_future(self._context.read())
        self._shared.reads.add(task)  # outlives this handler when that is cancelled; grpc ends it with the call
        task.add_done_callback(self._shared.reads.discard)
        self._ahead = task
        return task

    async def _answer(self, answer: Ticket | Rejection | Pass, *, waited_s: float) -> None:
        owed, waited_ms = self._session.owed, round(waited_s * 1000)
        match answer:
            case Ticket():
                self._ticket = answer
                self._session.admitted()
                changes = HeaderChanges() if self._gate is None else self._gate.header_changes(answer)
                reply = codec.admitted(owed, changes)
                facts = codec.metadata(Outcome.ADMITTED, str(answer.priority), answer.pool, waited_ms)
            case Rejection():
                self._session.refused()
                reply = codec.immediate(refusal(answer, self._request_id))
                facts = codec.metadata(answer.outcome, _label(answer.priority), answer.pool, waited_ms)
            case Pass():
                self._session.passed()
                reply = codec.PASS if owed is Kind.REQUEST_HEADERS else codec.CONTINUE[owed]
                facts = codec.metadata(answer.outcome, "", "", waited_ms)
        await self._reply(reply + facts)

    def _adopt(self) -> None:
        """A request that runs upstream undecided: it holds what it would have been given, or else becomes ghost load."""
        answer = self._ask_gate(None)
        match answer:
            case Ticket():
                self._ticket = answer
            case Waiting():
                answer.leave(ghost=True)
            case Rejection() | Pass():
                pass

    # -- replies --------------------------------------------------------------------------------------------------

    async def _reply(self, message: bytes) -> None:
        self._owed.pay(self._shared.clock.now(), self._timeout_s)
        await self._write(message)

    async def _write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.BaseError:
            return  # the call is over: the next read says so, or the cancellation on its way

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Gives back what the stream holds. Later calls change nothing."""
        if self._finished:
            return
        self._finished = True
        runs_on = may_run_on(
            self._shared,
            self._peer,
            phase=self._session.phase,
            owed=self._owed,
            timeout_s=self._timeout_s,
            sampled=self._sampling is not None and not self._sampling.over,
            broken=self._broken,
        )
        if self._session.phase is Phase.BODY_ASKED and self._candidate is not None:
            if runs_on:
                self._adopt()
            else:  # it left while it uploaded: nobody else tells its outcome
                self._shared.observer.decided(Outcome.CLIENT_GONE, None, "", waited_s=0.0)
        if self._waiting is not None:
            for_s = self._shared.clock.now() - self._waited_from
            runs_on = self._shared.modes.waited(for_s, self._timeout_s, cut=True) or runs_on
            self._waiting.leave(ghost=runs_on)
        if self._sampling is not None:
            self._sampling.drop()
        if self._ticket is not None:
            self._ticket.end(End.GHOST if runs_on else self._session.end())
        if self._event_stream_at is not None and not runs_on:
            self._shared.modes.event_stream_ended(self._shared.clock.now() - self._event_stream_at)


def _ended(ahead: asyncio.Task[object]) -> bool:
    """The stream's end has been read."""
    return ahead.done() and not isinstance(ahead.result(), bytes)


def _label(priority: Priority | None) -> str:
    return "" if priority is None else str(priority)
