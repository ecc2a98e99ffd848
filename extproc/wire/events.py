"""What Envoy tells us, as small frozen values: the input of `session`. No protobuf here."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from extproc.request import RequestHead


class Kind(StrEnum):
    """The messages of ext_proc; each request has a reply of the same kind."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


class RequestHeaders(Struct, frozen=True):
    head: RequestHead
    end_of_stream: bool


class RequestBody(Struct, frozen=True, gc=False):
    data: bytes
    end_of_stream: bool


class RequestTrailers(Struct, frozen=True, gc=False):
    pass


class ResponseHeaders(Struct, frozen=True, gc=False):
    """`status` None: absent or no number. `upstream`: the engine's `host:port`, empty where Envoy does not say.

    `event_stream`: the body is server-sent events, which take as long as the engine generates.
    """

    status: int | None
    upstream: str = ""
    end_of_stream: bool = False
    event_stream: bool = False


class ResponseBody(Struct, frozen=True, gc=False):
    data: bytes
    end_of_stream: bool


class ResponseTrailers(Struct, frozen=True, gc=False):
    pass


class Unknown(Struct, frozen=True, gc=False):
    """Not decodable, or of a kind that does not exist yet."""


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers | Unknown

KINDS: dict[type[Event], Kind] = {
    RequestHeaders: Kind.REQUEST_HEADERS,
    RequestBody: Kind.REQUEST_BODY,
    RequestTrailers: Kind.REQUEST_TRAILERS,
    ResponseHeaders: Kind.RESPONSE_HEADERS,
    ResponseBody: Kind.RESPONSE_BODY,
    ResponseTrailers: Kind.RESPONSE_TRAILERS,
}


class Protocol(Struct, frozen=True, gc=False):
    """Envoy's `protocol_config`, sent with a stream's first message."""

    request_duplex: bool = False
    """FULL_DUPLEX_STREAMED or GRPC request bodies: every chunk must be sent back, and `mode_override` is ignored."""
    response_duplex: bool = False
    eager_body: bool = False
    """`send_body_without_waiting_for_header_response`: `mode_override` is ignored."""
    observing: bool = False
    """`observability_mode`: replies are ignored, nothing can be refused."""

    @property
    def ignores_override(self) -> bool:
        return self.request_duplex or self.response_duplex or self.eager_body or self.observing


class Received(Struct, frozen=True):
    """One message. `protocol` is None on all but the first."""

    event: Event
    protocol: Protocol | None = None
