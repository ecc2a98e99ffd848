"""What the chunks of a streamed answer say of time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import DEFAULT_TENANT, Cost, End, Priority
from extproc.sim.openai_reply import DONE, Reply
from extproc.sim.openai_request import Endpoint
from extproc.tickets import Ticket
from extproc.wire.events import ResponseBody, ResponseTrailers
from extproc.wire.sampling import LEAST_TOKENS, Places, Sampling, TokenTimes

VLLM = Reply(Endpoint.CHAT, request_id="1", model="m", created=0, usage=True)
USAGE = VLLM.closing(3, 9).removesuffix(DONE)
ROLE = VLLM.opening(0)
ENDING = VLLM.event(0, " last", "stop") + USAGE + DONE

CHAT = b'data: {"choices":[{"index":0,"delta":{"content":"\\"content\\":\\"x"},"finish_reason":null}]}\n\n'
WITH_TEXT = {
    "chat": CHAT,
    "chat, spaced": b'data: {"choices": [{"delta": {"role": "assistant", "content": "Hi"}}]}\n\n',
    "chat, no blank after the colon": b'data:{"choices":[{"delta":{"content":"Hi"}}]}\n\n',
    "reasoning": b'data: {"choices":[{"delta":{"reasoning_content":"Hm"}}]}\n\n',
    "tool call": b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}}]}\n\n',
    "completion": b'data: {"choices":[{"index":0,"text":" a"}]}\n\n',
    "Responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"In"}\n\n',
    "Messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"Hello"}}\n\n',
    "Messages, tool": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,'
    b'"delta":{"type":"input_json_delta","partial_json":"{\\"l"}}\n\n',
    "CRLF": CHAT.replace(b"\n", b"\r\n"),
}
WITHOUT_TEXT = {
    "comment": b": ping\n\n",
    "comment that looks like an answer": b': data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
    "blank lines": b"\n\n\n",
    "role only": ROLE,
    "role without content": b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n',
    "usage": USAGE,
    "done": DONE,
    "end without text": b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    "Messages, start": b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","role":"assistant",'
    b'"content":[],"usage":{"input_tokens":25}}}\n\n',
    "Messages, block": b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n',
    "Messages, ping": b'event: ping\ndata: {"type":"ping"}\n\n',
    "Messages, end": b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
    "Responses, start": b'event: response.created\ndata: {"type":"response.created","response":{"output":[],'
    b'"text":{"format":{"type":"text"}}}}\n\n',
}


def _fed(*chunks: bytes) -> TokenTimes:
    """One chunk per second, from second 1 on."""
    times = TokenTimes()
    for second, data in enumerate(chunks, 1):
        times.feed(data, float(second))
    return times


@pytest.mark.parametrize("event", WITH_TEXT.values(), ids=WITH_TEXT)
def test_an_event_that_brings_text_is_one(event: bytes) -> None:
    times = _fed(event)
    assert (times.tokens, times.first_at) == (1, 1.0)


@pytest.mark.parametrize("event", WITHOUT_TEXT.values(), ids=WITHOUT_TEXT)
def test_whatever_else_a_stream_says_is_no_chunk_of_the_answer(event: bytes) -> None:
    times = _fed(event, event)
    assert (times.tokens, times.first_at, times.ttft_s(0)) == (0, None, None)


def test_the_first_text_makes_ttft_and_all_of_it_the_time_per_token() -> None:
    times = _fed(b": ping\n\n", ROLE, *[CHAT] * LEAST_TOKENS, USAGE, DONE)
    assert times.ttft_s(since=0.5) == 2.5
    assert times.tpot_s() == 1.0


def test_a_role_that_comes_with_the_first_token_does_not_count_beside_it() -> None:
    times = _fed(ROLE + CHAT, *[CHAT] * LEAST_TOKENS)
    assert (times.tokens, times.first_at) == (LEAST_TOKENS + 1, 1.0)


def test_tokens_that_share_a_chunk_are_counted_each() -> None:
    times = _fed(CHAT * 5, CHAT * 5, CHAT * 5)
    assert times.tpot_s() == pytest.approx(2 / 14)


def test_a_short_answer_tells_its_first_token_only() -> None:
    times = _fed(*[CHAT] * (LEAST_TOKENS - 1))
    assert (times.ttft_s(0), times.tpot_s()) == (1.0, None)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "queue full", "code": 503}}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
    ],
    ids=["vLLM", "Anthropic"],
)
def test_an_error_inside_the_stream_makes_it_no_measure(error: bytes) -> None:
    times = _fed(*[CHAT] * LEAST_TOKENS, error)
    assert (times.ttft_s(0), times.tpot_s()) == (None, None)


def test_text_that_speaks_of_errors_is_text() -> None:
    times = _fed(*[CHAT.replace(b"x", b'event: error data: {\\"error\\":')] * LEAST_TOKENS)
    assert times.tpot_s() == 1.0


def test_a_body_that_is_no_event_stream_is_not_kept() -> None:
    times = _fed(*[b"\x1f\x8b" + b"x" * 20_000] * 10)
    assert not times.readable
    assert len(times._rest) < 100_000
    assert times.ttft_s(0) is None


@given(st.lists(st.integers(1, 200), max_size=30))
def test_where_the_body_is_cut_does_not_matter_to_the_count(lengths: list[int]) -> None:
    body = ROLE + b": ping\n\n" + b"".join(WITH_TEXT.values()) + ENDING
    cuts = [0, *itertools.accumulate(lengths), len(body)]
    times = _fed(*(body[start:end] for start, end in itertools.pairwise(cuts)))
    assert times.tokens == len(WITH_TEXT) + 1


def _ticket() -> Ticket:
    return Ticket(
        pool="p",
        priority=Priority.P1,
        cost=Cost(1, 1),
        tenant=DEFAULT_TENANT,
        admitted_at=0.5,
        waited_s=0,
        on_end=lambda _ticket, _how: None,
    )


def test_an_engine_has_one_place_and_engines_do_not_share() -> None:
    places = Places()
    assert places.take("a:1")
    assert not places.take("a:1")
    assert places.take("b:2")
    places.free("a:1")
    assert places.take("a:1")
    assert len(places) == 2


def test_a_whole_answer_times_its_ticket_and_frees_the_place() -> None:
    places, ticket = Places(), _ticket()
    places.take("a:1")
    sampling = Sampling(ticket, "a:1", places)
    for second in range(1, LEAST_TOKENS + 1):
        sampling.saw(ResponseBody(CHAT, end_of_stream=False), float(second))
    sampling.saw(ResponseTrailers(), 9.5)
    assert (ticket.ttft_s, ticket.tpot_s, len(places)) == (0.5, 1.0, 0)


def test_a_dropped_one_says_nothing_and_a_later_drop_frees_nobody_elses_place() -> None:
    places, ticket = Places(), _ticket()
    places.take("a:1")
    sampling = Sampling(ticket, "a:1", places)
    sampling.saw(ResponseBody(CHAT, end_of_stream=False), 1.0)
    sampling.drop()
    assert (ticket.ttft_s, len(places)) == (None, 0)
    places.take("a:1")
    sampling.drop()
    assert len(places) == 1
    ticket.end(End.COMPLETED)
