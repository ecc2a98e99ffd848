"""What a client sends: the headers and the body of a streaming chat completion."""

from __future__ import annotations

from extproc.model import PRIORITIES
from extproc.request import RequestHead
from extproc.sim.world.traffic import Arrival

_CHAT = "/v1/chat/completions"
_PRIORITY = {priority: str(priority) for priority in PRIORITIES}


def head_of(arrival: Arrival, length: int, attempt: int) -> RequestHead:
    """As Envoy passes it on: each attempt has an id of its own."""
    headers = {
        "content-type": "application/json",
        "content-length": str(length),
        "x-priority": _PRIORITY[arrival.priority],
        "x-tenant-id": arrival.tenant,
    }
    if attempt:
        headers["x-stainless-retry-count"] = str(attempt)
    return RequestHead("POST", _CHAT, headers, request_id=f"{arrival.at_s:.9f}-{attempt}")


def body_of(arrival: Arrival) -> bytes:
    """A chat completion as the client sends it, the same at every attempt and like no other."""
    text, most = arrival.text_bytes, arrival.max_tokens
    limit = b"" if most is None else b'"max_tokens":%d,' % most
    start = b'{"model":"model-%d","stream":true,%s"messages":[{"role":"user","content":"' % (arrival.pool, limit)
    return start + (b"%.9f" % arrival.at_s)[-text:].ljust(text, b"x") + b'"}]}'
