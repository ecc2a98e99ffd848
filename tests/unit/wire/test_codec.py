"""Requests as Envoy writes them, and every reply as the official protobuf classes read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as official
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import Api, Outcome, Priority, Rejection
from extproc.request import HeaderChanges
from extproc.wire import codec, events
from extproc.wire.events import Kind, Protocol
from extproc.wire.refusal import refusal

_ADMITTED_MODE = {
    "requestHeaderMode": "SEND",
    "responseHeaderMode": "SEND",
    "requestTrailerMode": "SKIP",
    "responseTrailerMode": "SEND",
}


def _read(reply: bytes) -> dict[str, Any]:
    """Decoded by classes that are not ours, and the same bytes again when encoded by them: nothing was lost or unknown."""
    message = official.ProcessingResponse.FromString(reply)
    before = message.ByteSize()
    message.DiscardUnknownFields()
    assert message.ByteSize() == before == len(reply)
    return dict(MessageToDict(message))


def _request_headers(*headers: tuple[str, bytes], end_of_stream: bool = False) -> official.ProcessingRequest:
    message = official.ProcessingRequest()
    message.request_headers.end_of_stream = end_of_stream
    for key, raw in headers:
        message.request_headers.headers.headers.add(key=key, raw_value=raw)
    return message


class TestDecode:
    def test_request_headers_become_a_head(self) -> None:
        message = _request_headers(
            (":method", b"POST"), (":path", b"/v1/chat?x=1"), ("Content-Length", b"12"), ("x-request-id", b"id-1")
        )
        received = codec.decode(message.SerializeToString())
        assert received.protocol is None
        assert isinstance(received.event, events.RequestHeaders)
        head = received.event.head
        assert (head.method, head.path, head.content_length) == ("POST", "/v1/chat?x=1", 12)
        assert (head.request_id, head.bodiless) == ("id-1", False)
        assert ":path" not in head.headers

    def test_a_get_is_bodiless(self) -> None:
        event = codec.decode(_request_headers((":method", b"GET"), end_of_stream=True).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.bodiless
        assert event.end_of_stream

    def test_a_client_cannot_win_over_the_header_that_its_gateway_appended(self) -> None:
        event = codec.decode(_request_headers(("x-priority", b"P0"), ("x-priority", b"P2")).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.headers["x-priority"] == "P2"

    def test_raw_value_wins_and_value_is_read_where_it_is_alone(self) -> None:
        message = _request_headers(("a", b"raw"))
        message.request_headers.headers.headers.add(key="b", value="plain")
        event = codec.decode(message.SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.headers == {"a": "raw", "b": "plain"}

    def test_names_are_lower_case_whoever_sends_them(self) -> None:
        event = codec.decode(_request_headers(("X-Priority", b"P0"), ("x-priority", b"P2")).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.headers == {"x-priority": "P2"}

    @given(st.binary(max_size=40))
    def test_no_header_bytes_crash(self, raw: bytes) -> None:
        event = codec.decode(_request_headers(("x", raw)).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert isinstance(event.head.headers["x"], str)

    def test_bytes_that_are_not_utf8_are_latin1(self) -> None:
        event = codec.decode(_request_headers(("x", b"caf\xe9")).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.headers["x"] == "café"

    @given(st.binary(max_size=60))
    def test_no_bytes_at_all_crash(self, data: bytes) -> None:
        codec.decode(data)

    @pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x50\x01"])
    def test_what_cannot_be_read_is_unknown(self, data: bytes) -> None:
        assert codec.decode(data).event == events.Unknown()

    def test_response_headers_tell_status_engine_and_kind_of_body(self) -> None:
        message = official.ProcessingRequest()
        for key, raw in ((":status", b"200"), ("content-type", b"text/event-stream; charset=utf-8")):
            message.response_headers.headers.headers.add(key=key, raw_value=raw)
        message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.1:8000"})
        expected = events.ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False, event_stream=True)
        assert codec.decode(message.SerializeToString()).event == expected

    def test_a_status_that_is_no_number_is_none(self) -> None:
        message = official.ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=b"2x")
        assert codec.decode(message.SerializeToString()).event == events.ResponseHeaders(None)

    def test_numbers_longer_than_python_reads_are_none(self) -> None:
        """It refuses more than 4300 digits with an error, and after an error of ours a request passes."""
        message = official.ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=b"9" * 5000)
        assert codec.decode(message.SerializeToString()).event == events.ResponseHeaders(None)
        event = codec.decode(_request_headers(("content-length", b"9" * 5000)).SerializeToString()).event
        assert isinstance(event, events.RequestHeaders)
        assert event.head.content_length is None

    def test_bodies_and_trailers(self) -> None:
        body = official.ProcessingRequest()
        body.request_body.body, body.request_body.end_of_stream = b"{}", True
        assert codec.decode(body.SerializeToString()).event == events.RequestBody(b"{}", True)
        chunk = official.ProcessingRequest()
        chunk.response_body.body = b"x"
        assert codec.decode(chunk.SerializeToString()).event == events.ResponseBody(b"x", False)
        for name, event in (
            ("request_trailers", events.RequestTrailers()),
            ("response_trailers", events.ResponseTrailers()),
        ):
            trailers = official.ProcessingRequest()
            getattr(trailers, name).SetInParent()
            assert codec.decode(trailers.SerializeToString()).event == event

    def test_protocol_config_is_read_where_it_is_sent(self) -> None:
        message = _request_headers((":method", b"GET"))
        message.protocol_config.SetInParent()
        assert codec.decode(message.SerializeToString()).protocol == Protocol()
        message.protocol_config.request_body_mode = 4
        message.protocol_config.send_body_without_waiting_for_header_response = True
        protocol = codec.decode(message.SerializeToString()).protocol
        assert protocol == Protocol(request_duplex=True, eager_body=True)
        assert protocol.ignores_override

    def test_observability_mode_is_seen_without_a_protocol_config(self) -> None:
        message = _request_headers((":method", b"GET"))
        message.observability_mode = True
        assert codec.decode(message.SerializeToString()).protocol == Protocol(observing=True)


class TestReplies:
    @pytest.mark.parametrize("kind", Kind)
    def test_an_empty_continue_is_not_lost(self, kind: Kind) -> None:
        assert official.ProcessingResponse.FromString(codec.CONTINUE[kind]).WhichOneof("response") == kind

    def test_pass_asks_for_no_further_message(self) -> None:
        assert _read(codec.PASS) == {
            "requestHeaders": {},
            "modeOverride": {
                "requestHeaderMode": "SEND",
                "responseHeaderMode": "SKIP",
                "requestTrailerMode": "SKIP",
                "responseTrailerMode": "SKIP",
            },
        }

    def test_asking_for_the_body_keeps_the_hold_on_the_response(self) -> None:
        assert _read(codec.ASK_BODY) == {
            "requestHeaders": {},
            "modeOverride": {**_ADMITTED_MODE, "requestBodyMode": "BUFFERED"},
        }

    def test_sampling_asks_for_the_chunks_of_the_response_and_restates_the_rest(self) -> None:
        assert _read(codec.SAMPLE) == {
            "responseHeaders": {},
            "modeOverride": {**_ADMITTED_MODE, "responseBodyMode": "STREAMED"},
        }

    def test_admitted_from_headers_restates_the_mode(self) -> None:
        changes = HeaderChanges(set=(("x-vllm-priority", "1"),), remove=("x-priority",))
        assert _read(codec.admitted(Kind.REQUEST_HEADERS, changes)) == {
            "requestHeaders": {
                "response": {
                    "headerMutation": {
                        "setHeaders": [
                            {
                                "header": {"key": "x-vllm-priority", "rawValue": "MQ=="},
                                "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD",
                            }
                        ],
                        "removeHeaders": ["x-priority"],
                    }
                }
            },
            "modeOverride": _ADMITTED_MODE,
        }

    def test_admitted_from_the_body_has_no_mode(self) -> None:
        read = _read(codec.admitted(Kind.REQUEST_BODY, HeaderChanges(remove=("x-priority",))))
        assert read == {"requestBody": {"response": {"headerMutation": {"removeHeaders": ["x-priority"]}}}}

    def test_admitted_from_trailers_changes_nothing(self) -> None:
        assert _read(codec.admitted(Kind.REQUEST_TRAILERS, HeaderChanges(remove=("x",)))) == {"requestTrailers": {}}

    def test_no_changes_still_answer(self) -> None:
        reply = codec.admitted(Kind.REQUEST_BODY, HeaderChanges())
        assert official.ProcessingResponse.FromString(reply).WhichOneof("response") == "request_body"

    def test_the_same_admission_is_encoded_once(self) -> None:
        first = codec.admitted(Kind.REQUEST_HEADERS, HeaderChanges(set=(("a", "b"),)))
        assert codec.admitted(Kind.REQUEST_HEADERS, HeaderChanges(set=(("a", "b"),))) is first

    def test_metadata_is_appended_to_any_reply(self) -> None:
        reply = codec.CONTINUE[Kind.REQUEST_BODY] + codec.metadata(Outcome.ADMITTED, "P1", "llama", 12)
        message = official.ProcessingResponse.FromString(reply)
        assert message.WhichOneof("response") == "request_body"
        facts = MessageToDict(message.dynamic_metadata)
        assert facts == {"extproc": {"outcome": "admitted", "priority": "P1", "pool": "llama", "waited_ms": 12.0}}

    def test_override_is_told_in_milliseconds(self) -> None:
        assert _read(codec.override_timeout(9.2504)) == {"overrideMessageTimeout": "9.250s"}

    def test_a_duplex_chunk_is_sent_back(self) -> None:
        read = _read(codec.echo(Kind.REQUEST_BODY, b"abc", end_of_stream=True))
        streamed = {"body": "YWJj", "endOfStream": True}
        assert read == {"requestBody": {"response": {"bodyMutation": {"streamedResponse": streamed}}}}

    def test_an_immediate_response_is_whole_and_raw(self) -> None:
        rejection = Rejection(Outcome.SHED, "busy", retry_after_s=1.5, priority=Priority.P2, pool="llama")
        message = official.ProcessingResponse.FromString(codec.immediate(refusal(rejection, "id-1")))
        immediate = message.immediate_response
        assert immediate.status.code == 429
        assert json.loads(immediate.body)["error"]["message"] == "busy"
        assert immediate.details == "extproc_overload"
        headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
        assert headers["retry-after"] == b"2"
        assert all(option.header.value == "" for option in immediate.headers.set_headers)

    @pytest.mark.parametrize("outcome", [Outcome.SHED, Outcome.TOO_LARGE, Outcome.UNAVAILABLE, Outcome.DRAINING])
    @pytest.mark.parametrize("api", Api)
    def test_every_refusal_is_read_by_the_official_classes(self, outcome: Outcome, api: Api) -> None:
        reply = codec.immediate(refusal(Rejection(outcome, "no", api=api, retry_after_s=2.0))) + codec.metadata(
            outcome, "", "", 0
        )
        assert "immediateResponse" in _read(reply)
