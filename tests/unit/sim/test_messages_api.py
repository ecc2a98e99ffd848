"""Anthropic's API as the fake engine reads and writes it."""

from __future__ import annotations

import json

import pytest

from extproc.sim.engine_stats import Finish
from extproc.sim.messages_api import MessagesReply, error_body, parse_messages
from extproc.sim.openai_reply import Answer
from extproc.sim.openai_request import ApiError, Generation

MODELS = ("m", "alias")
BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x" * 40}]}


def parse(changes: dict[str, object], priority: str | None = None) -> Generation | ApiError:
    return parse_messages(json.dumps({**BODY, **changes}).encode(), priority_header=priority, models=MODELS)


def events(written: bytes) -> list[dict[str, object]]:
    found = []
    for event in written.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_text_of_every_form_counts() -> None:
    blocks = [
        {"type": "text", "text": "x" * 40},
        {"type": "tool_result", "content": [{"type": "text", "text": "y" * 40}]},
    ]
    system = [{"type": "text", "text": "s" * 40}]
    read = parse({"system": system, "messages": [{"role": "user", "content": blocks}]}, "2")
    assert isinstance(read, Generation)
    assert (read.prompt_tokens, read.max_tokens, read.priority, read.n) == ((30,), 9, 2, 1)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"max_tokens": None}, 400),
        ({"max_tokens": 0}, 400),
        ({"messages": []}, 400),
        ({"messages": "hi"}, 400),
        ({"model": "other"}, 404),
        ({"model": None}, 400),
    ],
)
def test_what_is_wrong_is_refused_in_anthropics_shape(changes: dict[str, object], status: int) -> None:
    refused = parse(changes)
    assert isinstance(refused, ApiError)
    assert refused.status == status
    body = json.loads(error_body(refused))
    assert body["type"] == "error"
    assert body["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b'{"system":' + b"[" * 100_000])
def test_unreadable_bodies_are_refused(body: bytes) -> None:
    assert isinstance(parse_messages(body, priority_header=None, models=MODELS), ApiError)


def test_a_stream_has_anthropics_events_in_order() -> None:
    reply = MessagesReply(request_id="r", model="m", prompt_tokens=5)
    written = reply.opening(0) + reply.event(0, " alfa") + reply.event(0, " echo", Finish.LENGTH) + reply.closing(5, 2)
    seen = events(written)
    assert [event["type"] for event in seen] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert seen[5]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert seen[5]["usage"] == {"input_tokens": 5, "output_tokens": 2}


def test_an_answer_cut_off_ends_its_block_without_a_delta() -> None:
    reply = MessagesReply(request_id="r", model="m", prompt_tokens=5)
    assert [event["type"] for event in events(reply.event(0, "", Finish.ABORT))] == ["content_block_stop"]


def test_a_whole_answer() -> None:
    reply = MessagesReply(request_id="r", model="m", prompt_tokens=5)
    message = json.loads(reply.whole([Answer(0, 2, Finish.STOP)], 5))
    assert message["content"] == [{"type": "text", "text": " alfa echo"}]
    assert (message["id"], message["stop_reason"]) == ("msg_r", "end_turn")
    assert message["usage"] == {"input_tokens": 5, "output_tokens": 2}
