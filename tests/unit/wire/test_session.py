"""Every order of messages that Envoy may send, and many that it may not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import End
from extproc.request import RequestHead
from extproc.wire import events
from extproc.wire.events import Event, Kind
from extproc.wire.session import Arrive, Close, Command, Continue, Decide, Phase, RunsUndecided, Session

HEAD = RequestHead("POST", "/v1/chat/completions", {})
REQ_HEADERS = events.RequestHeaders(HEAD, end_of_stream=False)
REQ_BODY = events.RequestBody(b"{}", end_of_stream=True)
REQ_TRAILERS = events.RequestTrailers()
RESP_HEADERS = events.ResponseHeaders(200)
RESP_ERROR = events.ResponseHeaders(503)
RESP_BODY = events.ResponseBody(b"x", end_of_stream=False)
RESP_TRAILERS = events.ResponseTrailers()
EVERYTHING = [REQ_HEADERS, REQ_BODY, REQ_TRAILERS, RESP_HEADERS, RESP_BODY, RESP_TRAILERS, events.Unknown()]

Step = Event | str
"""A message, or what was answered: `ask_body`, `admitted`, `passed`, `refused`, `ask_chunks`."""


def _play(steps: Sequence[Step]) -> tuple[Session, list[Command]]:
    session, commands = Session(), []
    for step in steps:
        if isinstance(step, str):
            getattr(session, step)()
        else:
            commands.append(session.receive(step))
    return session, commands


def go(kind: Kind) -> Continue:
    return Continue(kind)


def odd(kind: Kind) -> Continue:
    return Continue(kind, unexpected=True)


TABLE: list[tuple[str, list[Step], list[Command], Phase, End]] = [
    (
        "admitted from headers, trailers SEND",
        [REQ_HEADERS, "admitted", RESP_HEADERS],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "the chunks of the response are asked for",
        [REQ_HEADERS, "admitted", RESP_HEADERS, "ask_chunks", RESP_BODY, RESP_BODY],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS), go(Kind.RESPONSE_BODY), go(Kind.RESPONSE_BODY)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "chunks of the response come unasked",
        [REQ_HEADERS, "admitted", RESP_HEADERS, RESP_BODY],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS), odd(Kind.RESPONSE_BODY)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "admitted, the engine sends trailers",
        [REQ_HEADERS, "admitted", RESP_HEADERS, RESP_TRAILERS],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS), go(Kind.RESPONSE_TRAILERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "the engine fails",
        [REQ_HEADERS, "admitted", RESP_ERROR],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.DROPPED,
    ),
    ("the client leaves before any response", [REQ_HEADERS, "admitted"], [Arrive(HEAD)], Phase.ADMITTED, End.IGNORED),
    ("refused from headers", [REQ_HEADERS, "refused"], [Arrive(HEAD)], Phase.OVER, End.IGNORED),
    (
        "refused, and the response that Envoy makes of it comes by",
        [REQ_HEADERS, "refused", RESP_HEADERS, RESP_TRAILERS],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS), go(Kind.RESPONSE_TRAILERS)],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "passed where mode_override is not allowed: everything comes all the same",
        [REQ_HEADERS, "passed", REQ_BODY, RESP_HEADERS, RESP_BODY, RESP_TRAILERS],
        [
            Arrive(HEAD),
            go(Kind.REQUEST_BODY),
            go(Kind.RESPONSE_HEADERS),
            go(Kind.RESPONSE_BODY),
            go(Kind.RESPONSE_TRAILERS),
        ],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "body asked for and admitted",
        [REQ_HEADERS, "ask_body", REQ_BODY, "admitted", RESP_HEADERS],
        [Arrive(HEAD), Decide(b"{}"), go(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "a buffered body before trailers is whole though its end is not marked",
        [REQ_HEADERS, "ask_body", events.RequestBody(b"{}", end_of_stream=False), "admitted", RESP_HEADERS],
        [Arrive(HEAD), Decide(b"{}"), go(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "body asked for and refused",
        [REQ_HEADERS, "ask_body", REQ_BODY, "refused"],
        [Arrive(HEAD), Decide(b"{}")],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "the body turns out to be nothing but trailers",
        [REQ_HEADERS, "ask_body", REQ_TRAILERS, "admitted"],
        [Arrive(HEAD), Decide(None)],
        Phase.ADMITTED,
        End.IGNORED,
    ),
    (
        "the body never comes: mode_override is not allowed",
        [REQ_HEADERS, "ask_body", RESP_HEADERS],
        [Arrive(HEAD), RunsUndecided(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "the body is too large for Envoy, which answers 413 itself",
        [REQ_HEADERS, "ask_body", events.ResponseHeaders(413)],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS)],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "the body never comes and response headers are skipped",
        [REQ_HEADERS, "ask_body", RESP_TRAILERS],
        [Arrive(HEAD), RunsUndecided(Kind.RESPONSE_TRAILERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    ("an earlier filter answered", [RESP_HEADERS], [go(Kind.RESPONSE_HEADERS)], Phase.OVER, End.IGNORED),
    (
        "an earlier filter answered, with trailers",
        [RESP_HEADERS, RESP_TRAILERS],
        [go(Kind.RESPONSE_HEADERS), go(Kind.RESPONSE_TRAILERS)],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "request headers are skipped: the body is the first we see",
        [REQ_BODY, RESP_HEADERS],
        [odd(Kind.REQUEST_BODY), go(Kind.RESPONSE_HEADERS)],
        Phase.OVER,
        End.IGNORED,
    ),
    (
        "chunks of a body that is streamed against our wish",
        [REQ_HEADERS, "admitted", REQ_BODY, REQ_BODY, RESP_HEADERS],
        [Arrive(HEAD), odd(Kind.REQUEST_BODY), odd(Kind.REQUEST_BODY), go(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "response headers twice",
        [REQ_HEADERS, "admitted", RESP_HEADERS, RESP_ERROR],
        [Arrive(HEAD), go(Kind.RESPONSE_HEADERS), odd(Kind.RESPONSE_HEADERS)],
        Phase.RESPONDING,
        End.DROPPED,
    ),
    (
        "request headers twice",
        [REQ_HEADERS, "admitted", REQ_HEADERS],
        [Arrive(HEAD), odd(Kind.REQUEST_HEADERS)],
        Phase.ADMITTED,
        End.IGNORED,
    ),
    (
        "request headers again instead of the body",
        [REQ_HEADERS, "ask_body", REQ_HEADERS, REQ_BODY, "admitted"],
        [Arrive(HEAD), odd(Kind.REQUEST_HEADERS), Decide(b"{}")],
        Phase.ADMITTED,
        End.IGNORED,
    ),
    (
        "a message while the verdict is owed",
        [REQ_HEADERS, REQ_BODY, "admitted"],
        [Arrive(HEAD), odd(Kind.REQUEST_BODY)],
        Phase.ADMITTED,
        End.IGNORED,
    ),
    (
        "the response begins without its headers",
        [REQ_HEADERS, "admitted", RESP_BODY, RESP_TRAILERS],
        [Arrive(HEAD), odd(Kind.RESPONSE_BODY), go(Kind.RESPONSE_TRAILERS)],
        Phase.RESPONDING,
        End.COMPLETED,
    ),
    (
        "a message of a kind to come",
        [REQ_HEADERS, "admitted", events.Unknown()],
        [Arrive(HEAD), Close()],
        Phase.ADMITTED,
        End.IGNORED,
    ),
]


@pytest.mark.parametrize(
    ("steps", "commands", "phase", "end"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_table(steps: list[Step], commands: list[Command], phase: Phase, end: End) -> None:
    session, given_commands = _play(steps)
    assert given_commands == commands
    assert session.phase is phase
    assert session.end() is end


@pytest.mark.parametrize("steps", [row[1] for row in TABLE], ids=[row[0] for row in TABLE])
def test_every_prefix_of_the_table_has_an_end(steps: list[Step]) -> None:
    for length in range(len(steps) + 1):
        session, _ = _play(steps[:length])
        assert session.end() in (End.IGNORED, End.COMPLETED, End.DROPPED)


@given(
    st.lists(st.sampled_from(EVERYTHING), max_size=8), st.sampled_from(["admitted", "refused", "passed", "ask_body"])
)
def test_any_order_gets_one_answer_each(order: list[Event], verdict: str) -> None:
    session = Session()
    for event in order:
        command = session.receive(event)
        if isinstance(event, events.Unknown):
            assert command == Close()
            continue
        kind = events.KINDS[type(event)]
        if isinstance(command, Arrive | Decide):
            assert session.owed is kind
            getattr(session, verdict if isinstance(command, Arrive) else "admitted")()
        else:
            assert isinstance(command, Continue | RunsUndecided)
            assert command.kind is kind


def test_a_request_is_asked_about_once() -> None:
    _, commands = _play([REQ_HEADERS, "admitted", REQ_HEADERS, RESP_HEADERS, REQ_HEADERS])
    assert sum(isinstance(command, Arrive) for command in commands) == 1


def test_a_verdict_that_nobody_asked_for_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="nothing was asked"):
        Session().admitted()
