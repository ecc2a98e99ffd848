"""Clients: each sends a request, waits for its first byte as long as it has patience, and may try again."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

from extproc.admission import Admission, Candidate, Pass
from extproc.model import End, Rejection
from extproc.sim.engine import Refusal, SimRequest
from extproc.sim.world.machine import Machine
from extproc.sim.world.message import body_of, head_of
from extproc.sim.world.record import Fate, Record
from extproc.sim.world.router import Router
from extproc.sim.world.traffic import Arrival
from extproc.tickets import Ticket, Waiting
from extproc.wire.sampling import LEAST_TOKENS, Places

PATIENCE_S = 20.0
"""A client that has no first token by then leaves."""
FRONT_S = 0.005
"""From the verdict to the engine's queue: Envoy, the network, and the engine's API server with its tokenizer."""
_BACKOFF_S, _MOST_BACKOFF_S = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class Persistence:
    """Most retries of a refused request, by who does as it is told and by who does not. The SDKs' default is 2."""

    obedient: int = 0
    deaf: int = 0


class Replica(Protocol):
    """The process of the service that Envoy asked. `waiting`: whose verdict it owes."""

    places: Places
    waiting: dict[Attempt, None]
    alive: bool


class Gateway(Protocol):
    """The world as an attempt meets it: the service, and what is behind it."""

    loop: asyncio.AbstractEventLoop
    persistence: Persistence
    random: Random

    def admission(self, attempt: Attempt) -> Admission | None:
        """Of the replica that Envoy asks, which becomes the attempt's; None: there is none, and it lets the request pass."""

    def router(self, arrival: Arrival) -> Router: ...

    def began(self, record: Record) -> None: ...

    def let_in(self) -> None: ...

    def ended(self, record: Record) -> None: ...

    def retry(self, arrival: Arrival, attempt: int, *, after_s: float) -> None: ...


class Attempt:
    """One attempt; a `machine.Receiver` once it is inside an engine."""

    __slots__ = (
        "_arrival",
        "_gateway",
        "_handle",
        "_leaving",
        "_machine",
        "_timed",
        "record",
        "replica",
        "ticket",
        "waiting",
    )

    def __init__(self, gateway: Gateway, arrival: Arrival, attempt: int = 0) -> None:
        self._gateway = gateway
        self._arrival = arrival
        self._machine: Machine | None = None
        self._handle: int | None = None
        self._timed = False
        self.replica: Replica | None = None
        self.ticket: Ticket | None = None
        self.waiting: Waiting | None = None
        now = gateway.loop.time()
        self.record = Record(arrival, now, attempt)
        gateway.began(self.record)
        self._leaving: asyncio.TimerHandle | None = None
        self._ask()
        if self.record.fate is Fate.PENDING:
            self._leaving = gateway.loop.call_at(now + min(PATIENCE_S, arrival.leaves_after_s), self._leave)

    # -- the verdict

    def _ask(self) -> None:
        admission = None if self._arrival.bypasses else self._gateway.admission(self)
        if admission is None:
            self.pass_by()
            return
        body = body_of(self._arrival)
        answer = admission.arrive(head_of(self._arrival, len(body), self.record.attempt))
        if isinstance(answer, Candidate):
            self._decided(admission.decide(answer, body if answer.wants_body else None))
        else:
            self._decided(answer)

    def _decided(self, answer: Ticket | Waiting | Rejection | Pass) -> None:
        match answer:
            case Waiting():
                self.waiting = answer
                if self.replica is not None:
                    self.replica.waiting[self] = None
                answer.verdict.add_done_callback(self._heard)
            case Rejection():
                self._refused(answer)
            case Ticket():
                self._admitted(answer)
            case Pass():
                self.pass_by()

    def _heard(self, verdict: asyncio.Future[Ticket | Rejection]) -> None:
        if self._waits_no_more() is not None:
            self._decided(verdict.result())

    def _waits_no_more(self) -> Waiting | None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None and self.replica is not None:
            self.replica.waiting.pop(self, None)
        return waiting

    def _refused(self, rejection: Rejection) -> None:
        self.record.reason = rejection.outcome.value
        self._over(Fate.REFUSED)
        self._try_again(rejection.retry_after_s)

    def _admitted(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.pass_by()

    def pass_by(self) -> None:
        """On to an engine, with a ticket or without."""
        now = self._gateway.loop.time()
        self.waiting = None
        self.record.admitted_at = now
        self._gateway.let_in()
        machine = self._machine = self._gateway.router(self._arrival).pick()
        if machine is None:
            self._fail()
            return
        machine.open += 1
        self._gateway.loop.call_at(now + FRONT_S, self._enter, machine)

    # -- inside an engine

    def _enter(self, machine: Machine) -> None:
        if self.record.fate is not Fate.PENDING:
            return
        arrival = self._arrival
        request = SimRequest(arrival.prompt_tokens, arrival.output_tokens, arrival.max_tokens, int(arrival.priority))
        handle = machine.enter(request, self) if machine.up else Refusal.QUEUE_FULL
        if isinstance(handle, Refusal):
            self._fail()
            return
        self._handle = handle
        ticket = self.ticket
        if ticket is not None and ticket.worth_timing and self.replica is not None:
            self._timed = self.replica.places.take(machine.name)

    def first(self, now: float) -> None:
        if self._arrival.leaves_after_s == math.inf:
            self._stay()
        self.record.first_at = now

    def last(self, now: float) -> None:
        record, ticket = self.record, self.ticket
        record.last_at = now
        if self._timed and ticket is not None and record.first_at is not None:
            tokens = self._arrival.output_tokens
            tpot_s = (now - record.first_at) / (tokens - 1) if tokens >= LEAST_TOKENS else None
            ticket.timed(ttft_s=record.first_at - (record.admitted_at or 0.0), tpot_s=tpot_s)
        self._over(Fate.ANSWERED)

    def cut(self) -> None:
        self._handle = None
        self._fail()

    # -- the end

    def _stay(self) -> None:
        """It leaves no more before its end."""
        if self._leaving is not None:
            self._leaving.cancel()

    def _fail(self) -> None:
        self._over(Fate.FAILED)
        self._try_again(None)

    def _leave(self) -> None:
        if self.record.fate is not Fate.PENDING:
            return
        if (waiting := self._waits_no_more()) is not None:
            waiting.leave(ghost=False)
        self._over(Fate.LEFT)

    def _over(self, fate: Fate) -> None:
        self.record.fate = fate
        self.record.ended_at = self._gateway.loop.time()
        self._stay()
        machine, ticket = self._machine, self.ticket
        if machine is not None:
            machine.open -= 1
            if fate is Fate.LEFT and self._handle is not None:
                machine.abort(self._handle)
            if self._timed and self.replica is not None:
                self.replica.places.free(machine.name)
        if ticket is not None and self.replica is not None and self.replica.alive:
            ticket.end(_ENDS[fate])
        self._gateway.ended(self.record)

    def _try_again(self, told_s: float | None) -> None:
        attempt, gateway, arrival = self.record.attempt, self._gateway, self._arrival
        persistence = gateway.persistence
        if attempt >= (persistence.obedient if arrival.obeys else persistence.deaf):
            return
        if arrival.obeys and told_s is not None:
            wait_s = told_s
        else:
            wait_s = min(_MOST_BACKOFF_S, _BACKOFF_S * 2.0**attempt) * (1 - 0.25 * gateway.random.random())
        gateway.retry(arrival, attempt + 1, after_s=wait_s)


_ENDS = {Fate.ANSWERED: End.COMPLETED, Fate.FAILED: End.DROPPED, Fate.LEFT: End.IGNORED}
