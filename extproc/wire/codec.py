"""Bytes <-> events and replies. The only module that touches protobuf messages at run time.

Measured per message on one core: decoding fifteen headers takes 10 us, a reply from the caches 0.5 us, a refusal 9 us.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from extproc.request import HeaderChanges, Metadata, RequestHead
from extproc.wire import events
from extproc.wire.events import Event, Kind, Protocol, Received
from extproc.wire.refusal import Refusal
from extproc.wire.schema import ProcessingRequest, ProcessingResponse

METADATA_NAMESPACE = "extproc"
"""Where access logs find us: `%DYNAMIC_METADATA(extproc:outcome)%`, `priority`, `pool`, `waited_ms`."""

_SEND, _SKIP = 1, 2  # ProcessingMode.HeaderSendMode
_NONE, _STREAMED, _BUFFERED, _FULL_DUPLEX, _GRPC = 0, 1, 2, 4, 5  # ProcessingMode.BodySendMode
_OVERWRITE = 2  # HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
_OTHER_PSEUDO = (":authority", ":scheme", ":protocol")
_UNKNOWN = Received(events.Unknown())


def decode(data: bytes) -> Received:
    """Never raises: what cannot be read is `Unknown`."""
    try:
        message = ProcessingRequest.FromString(data)
    except DecodeError:
        return _UNKNOWN
    kind = message.WhichOneof("request")
    read = _READERS.get(kind)
    if read is None:
        return _UNKNOWN
    protocol = _protocol(message) if message.HasField("protocol_config") or message.observability_mode else None
    return Received(read(message), protocol)


def _protocol(message: Any) -> Protocol:
    config = message.protocol_config
    eager = config.send_body_without_waiting_for_header_response
    return _protocol_of(config.request_body_mode, config.response_body_mode, eager, message.observability_mode)


@lru_cache(maxsize=64)
def _protocol_of(request_body: int, response_body: int, eager_body: bool, observing: bool) -> Protocol:
    duplex = (_FULL_DUPLEX, _GRPC)
    return Protocol(request_body in duplex, response_body in duplex, eager_body, observing)


def _headers(header_map: Any) -> dict[str, str]:
    """Lower-case names to values; the last of a repeated name (`RequestHead` says why)."""
    listed = header_map.headers
    try:
        headers = {header.key: header.raw_value.decode() for header in listed}
    except UnicodeDecodeError:
        return _headers_one_by_one(listed)
    if "" in headers.values() or not "".join(headers).islower():
        return _headers_one_by_one(listed)
    return headers


def _headers_one_by_one(listed: Any) -> dict[str, str]:
    """As `_headers`, for what Envoy does not normally send: odd bytes, capitals, `value` instead of `raw_value`."""
    return {header.key.lower(): _text(header.raw_value) or header.value for header in listed}


def _text(raw: bytes) -> str:
    """Header bytes are UTF-8 by custom only: anything else is read as Latin-1, which has no invalid bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _read_request_headers(message: Any) -> Event:
    part = message.request_headers
    headers, bodiless = _headers(part.headers), part.end_of_stream
    take = headers.pop
    method, path = take(":method", ""), take(":path", "")
    for name in _OTHER_PSEUDO:
        take(name, None)
    request_id = headers.get("x-request-id", "")
    metadata = _metadata(message) if message.HasField("metadata_context") else None
    head = RequestHead(method, path, headers, bodiless, request_id, metadata)
    return events.RequestHeaders(head, bodiless)


def _metadata(message: Any) -> Metadata:
    """Looks only when asked: most policies never do."""
    by_namespace = message.metadata_context.filter_metadata

    def look(namespace: str, path: tuple[str, ...]) -> str | None:
        if namespace not in by_namespace or not path:
            return None
        fields = by_namespace[namespace].fields
        for key in path[:-1]:
            if key not in fields:
                return None
            fields = fields[key].struct_value.fields
        if path[-1] not in fields:
            return None
        value = fields[path[-1]]
        return f"{value.number_value:.15g}" if value.HasField("number_value") else str(value.string_value) or None

    return look


def _read_response_headers(message: Any) -> Event:
    part = message.response_headers
    headers = _headers(part.headers)
    status = headers.get(":status", "")
    return events.ResponseHeaders(
        status=int(status) if status.isascii() and status.isdigit() and len(status) == 3 else None,
        upstream=_attribute(message, "upstream.address"),
        end_of_stream=part.end_of_stream,
        event_stream=headers.get("content-type", "").startswith("text/event-stream"),
    )


def _attribute(message: Any, name: str) -> str:
    """An attribute that Envoy's `request_attributes` or `response_attributes` asks for; empty where it does not."""
    attributes = message.attributes
    for filter_name in attributes:
        fields = attributes[filter_name].fields
        if name in fields:
            return str(fields[name].string_value)
    return ""


_READERS: dict[str | None, Any] = {
    Kind.REQUEST_HEADERS.value: _read_request_headers,
    Kind.RESPONSE_HEADERS.value: _read_response_headers,
    Kind.REQUEST_BODY.value: lambda m: events.RequestBody(m.request_body.body, m.request_body.end_of_stream),
    Kind.RESPONSE_BODY.value: lambda m: events.ResponseBody(m.response_body.body, m.response_body.end_of_stream),
    Kind.REQUEST_TRAILERS.value: lambda _: events.RequestTrailers(),
    Kind.RESPONSE_TRAILERS.value: lambda _: events.ResponseTrailers(),
}


def _plain_continue(kind: Kind) -> bytes:
    message = ProcessingResponse()
    getattr(message, kind).SetInParent()
    return bytes(message.SerializeToString())


CONTINUE: dict[Kind, bytes] = {kind: _plain_continue(kind) for kind in Kind}
"""The reply that changes nothing, for each kind of message."""


def _mode(*, response: int, request_body: int = _NONE, response_body: int = _NONE) -> Any:
    """A whole `mode_override`: it replaces the filter's mode, so every field is said, the zeros by being absent.

    Response trailers SEND keep the stream open until the response has ended, at no cost per chunk: the stream is the hold.
    """
    message = ProcessingResponse()
    mode = message.mode_override
    mode.request_header_mode = _SEND
    mode.response_header_mode = response
    mode.request_body_mode = request_body
    mode.response_body_mode = response_body
    mode.request_trailer_mode = _SKIP
    mode.response_trailer_mode = response
    return message


def _with_mode(*, response: int, request_body: int = _NONE) -> bytes:
    message = _mode(response=response, request_body=request_body)
    message.request_headers.SetInParent()
    return bytes(message.SerializeToString())


PASS: bytes = _with_mode(response=_SKIP)
"""To request headers: go on, and send us nothing more of this request."""
ASK_BODY: bytes = _with_mode(response=_SEND, request_body=_BUFFERED)
"""To request headers: send the whole body before going on. Only where its length is known to fit Envoy's buffer: of a
longer one Envoy may neither send it nor refuse the request, and nothing moves any more."""


def _sample() -> bytes:
    message = _mode(response=_SEND, response_body=_STREAMED)
    message.response_headers.SetInParent()
    return bytes(message.SerializeToString())


SAMPLE: bytes = _sample()
"""To response headers: go on, and send us each chunk of the body before it goes on to the client."""


@lru_cache(maxsize=1024)
def admitted(kind: Kind, changes: HeaderChanges) -> bytes:
    """The reply that lets a request through. `mode_override` counts only in replies to headers."""
    message = _mode(response=_SEND) if kind is Kind.REQUEST_HEADERS else ProcessingResponse()
    part = getattr(message, kind)
    part.SetInParent()
    if kind in (Kind.REQUEST_TRAILERS, Kind.RESPONSE_TRAILERS):
        return bytes(message.SerializeToString())  # too late to change the headers
    if changes.set or changes.remove:
        _change(part.response.header_mutation, changes.set, changes.remove)
    return bytes(message.SerializeToString())


def _change(mutation: Any, set_headers: tuple[tuple[str, str], ...], remove: tuple[str, ...] = ()) -> None:
    """`raw_value` only: Envoy ignores `value`, and refuses both together."""
    for name, value in set_headers:
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key = name
        option.header.raw_value = value.encode()
    mutation.remove_headers.extend(remove)


@lru_cache(maxsize=4096)
def metadata(outcome: str, priority: str, pool: str, waited_ms: int) -> bytes:
    """Dynamic metadata for access logs, to be appended to any reply: protobuf merges what is concatenated."""
    message = ProcessingResponse()
    facts = {"outcome": outcome, "priority": priority, "pool": pool, "waited_ms": waited_ms}
    message.dynamic_metadata.update({METADATA_NAMESPACE: facts})
    return bytes(message.SerializeToString())


def immediate(refusal: Refusal) -> bytes:
    """The reply that ends the request here."""
    message = ProcessingResponse()
    part = message.immediate_response
    part.status.code = refusal.status
    _change(part.headers, refusal.headers)
    part.body = refusal.body
    part.details = refusal.details
    return bytes(message.SerializeToString())


def override_timeout(seconds: float) -> bytes:
    """Asks Envoy to wait `seconds` from now for the reply it is owed."""
    message = ProcessingResponse()
    message.override_message_timeout.FromMilliseconds(round(seconds * 1000))
    return bytes(message.SerializeToString())


def echo(kind: Kind, data: bytes, end_of_stream: bool) -> bytes:
    """The reply to a chunk in a FULL_DUPLEX_STREAMED mode, where what is not sent back is lost."""
    message = ProcessingResponse()
    streamed = getattr(message, kind).response.body_mutation.streamed_response
    streamed.body = data
    streamed.end_of_stream = end_of_stream
    return bytes(message.SerializeToString())
