"""One stream's protocol as a pure state machine: events in, commands out. No I/O, no time, no decisions of its own.

Every event gets exactly one command. Whatever order Envoy, or something that calls itself Envoy, sends messages in,
there is an answer: messages that the state did not call for are continued, and counted as unexpected.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from extproc.model import End
from extproc.request import RequestHead
from extproc.wire import events
from extproc.wire.events import KINDS, Event, Kind


class Phase(StrEnum):
    NEW = "new"
    """Nothing seen."""
    DECIDING = "deciding"
    """We owe the reply that lets the request through or ends it."""
    BODY_ASKED = "body-asked"
    """The reply to the headers asked for the body, which is on its way."""
    ADMITTED = "admitted"
    """Let through; no response yet."""
    RESPONDING = "responding"
    """The response has begun; it ends with the stream."""
    OVER = "over"
    """Passed or refused: what still comes is continued and means nothing."""


class Arrive(Struct, frozen=True):
    """Ask admission about the headers, then call one of `passed`, `ask_body`, `admitted`, `refused`."""

    head: RequestHead


class Decide(Struct, frozen=True, gc=False):
    """Ask admission again, then call `passed`, `admitted` or `refused`. `body` None: asked for, but there is none."""

    body: bytes | None


class Continue(Struct, frozen=True, gc=False):
    """Send the reply that changes nothing. `unexpected`: the state did not call for this message."""

    kind: Kind
    unexpected: bool = False


class RunsUndecided(Struct, frozen=True, gc=False):
    """The engine answers though the body that we asked for never came: Envoy's mode does not let us ask, and the request
    runs upstream. Account for it, then continue."""

    kind: Kind


class Close(Struct, frozen=True, gc=False):
    """There is no reply to a message of unknown kind: end the stream, which Envoy takes for *go on without me*."""


Command = Arrive | Decide | Continue | RunsUndecided | Close


class Session:
    """The state of one stream. `owed` is the kind of message that the verdict will answer."""

    __slots__ = ("_chunks_asked", "_status", "owed", "phase")

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.owed = Kind.REQUEST_HEADERS
        self._status: int | None = None
        self._chunks_asked = False

    def receive(self, event: Event) -> Command:
        """The next message. Not to be called while the verdict is owed, except to have the message continued."""
        kind = KINDS.get(type(event))
        if kind is None:
            return Close()
        match self.phase:
            case Phase.NEW:
                return self._first(event, kind)
            case Phase.BODY_ASKED:
                return self._after_asking(event, kind)
            case Phase.DECIDING:
                return Continue(kind, unexpected=True)
            case Phase.ADMITTED | Phase.RESPONDING:
                return self._response(event, kind)
            case Phase.OVER:
                return Continue(kind)

    # -- what admission said --------------------------------------------------------------------------------------

    def ask_body(self) -> None:
        self._leave_deciding(Phase.BODY_ASKED)

    def admitted(self) -> None:
        self._leave_deciding(Phase.ADMITTED)

    def passed(self) -> None:
        self._leave_deciding(Phase.OVER)

    def refused(self) -> None:
        self._leave_deciding(Phase.OVER)

    def ask_chunks(self) -> None:
        """The reply to the response headers asks for the body, chunk by chunk."""
        self._chunks_asked = True

    def end(self) -> End:
        """How a ticket ends with this stream, as far as the messages tell.

        A response that ended and a client that left in the middle of one look the same from here: both are COMPLETED.
        """
        if self.phase is not Phase.RESPONDING:
            return End.IGNORED
        return End.DROPPED if self._status is not None and self._status >= 500 else End.COMPLETED

    # -- per phase ------------------------------------------------------------------------------------------------

    def _leave_deciding(self, phase: Phase) -> None:
        if self.phase is not Phase.DECIDING:
            raise AssertionError(f"a verdict in phase {self.phase}: nothing was asked")
        self.phase = phase

    def _first(self, event: Event, kind: Kind) -> Command:
        if isinstance(event, events.RequestHeaders):
            self.phase = Phase.DECIDING
            return Arrive(event.head)
        # Response headers come first when an earlier filter answered by itself. Anything else means that Envoy does not
        # send us request headers: without them there is nothing to decide.
        self.phase = Phase.OVER
        return Continue(kind, unexpected=kind is not Kind.RESPONSE_HEADERS)

    def _after_asking(self, event: Event, kind: Kind) -> Command:
        match event:
            case events.RequestBody():
                # With request trailers Envoy sends a BUFFERED body whole but without its end mark: one message is the body.
                self.phase, self.owed = Phase.DECIDING, kind
                return Decide(event.data)
            case events.RequestTrailers():
                self.phase, self.owed = Phase.DECIDING, kind
                return Decide(None)
            case events.ResponseHeaders() if event.status is not None and event.status >= 400:
                # Envoy's own answer, most likely: 413 for a body larger than its buffer. The request goes nowhere.
                self.phase = Phase.OVER
                return Continue(kind)
            case events.ResponseHeaders():
                self.phase, self._status = Phase.RESPONDING, event.status
                return RunsUndecided(kind)
            case events.ResponseBody() | events.ResponseTrailers():
                self.phase = Phase.RESPONDING
                return RunsUndecided(kind)
            case _:
                return Continue(kind, unexpected=True)

    def _response(self, event: Event, kind: Kind) -> Command:
        if isinstance(event, events.ResponseHeaders):
            repeated = self.phase is Phase.RESPONDING
            self.phase, self._status = Phase.RESPONDING, event.status
            return Continue(kind, unexpected=repeated)
        if isinstance(event, events.ResponseBody | events.ResponseTrailers):
            headers_seen = self.phase is Phase.RESPONDING
            self.phase = Phase.RESPONDING
            unasked = kind is Kind.RESPONSE_BODY and not self._chunks_asked
            return Continue(kind, unexpected=not headers_seen or unasked)
        return Continue(kind, unexpected=True)
