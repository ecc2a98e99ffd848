"""Envoy's messages for the requests of `requests`, as bytes, for what is measured without an Envoy."""

from __future__ import annotations

from collections.abc import Mapping

from bench.requests import HEADERS, PATH
from extproc.request import RequestHead
from extproc.wire import codec, events
from extproc.wire.schema import ProcessingRequest

_FROM_ENVOY = {
    ":authority": "gateway.example",
    ":path": PATH,
    ":method": "POST",
    ":scheme": "http",
    "x-forwarded-for": "10.0.0.9",
    "x-forwarded-proto": "http",
    "x-request-id": "6f0f9a6e-5c0b-4a1c-9d4c-0f3c4a7e9b21",
}


def _bytes(part: str, headers: Mapping[str, str], *, end_of_stream: bool = False, first: bool = False) -> bytes:
    message = ProcessingRequest()
    if first:
        message.protocol_config.SetInParent()
    target = getattr(message, part)
    for name, value in headers.items():
        target.headers.headers.add(key=name, raw_value=value.encode())
    target.end_of_stream = end_of_stream
    return bytes(message.SerializeToString())


def request_headers(body_bytes: int, priority: str = "") -> bytes:
    """The first message of a request's stream."""
    headers = {**_FROM_ENVOY, **HEADERS, "content-length": str(body_bytes)}
    del headers["host"]
    if priority:
        headers["x-priority"] = priority
    return _bytes("request_headers", headers, end_of_stream=body_bytes == 0, first=True)


def request_body(body: bytes) -> bytes:
    """A whole buffered body."""
    message = ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = True
    return bytes(message.SerializeToString())


def response_headers() -> bytes:
    """With the engine's address, which `response_attributes` asks for."""
    headers = {
        ":status": "200",
        "content-type": "application/json",
        "server": "uvicorn",
        "date": "Thu, 01 Jan 2026 00:00:00 GMT",
        "x-envoy-upstream-service-time": "12",
        "content-length": "512",
    }
    message = ProcessingRequest.FromString(_bytes("response_headers", headers))
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.1:8000"})
    return bytes(message.SerializeToString())


def request_head(body_bytes: int, priority: str) -> RequestHead:
    """The same request as the decisions see it."""
    event = codec.decode(request_headers(body_bytes, priority)).event
    assert isinstance(event, events.RequestHeaders)
    return event.head
