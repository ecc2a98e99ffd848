"""What a refused client gets: status, headers, body. Pure; `outcomes.ANSWERS` is the table behind it.

Error types, by status and API (`facts` of the SDKs: they choose their exception by status, people read type and message):

| status | OpenAI type / code | Anthropic type |
|---|---|---|
| 401 | authentication_error / invalid_api_key | authentication_error |
| 413 | invalid_request_error / request_too_large | request_too_large |
| 429 | rate_limit_error / rate_limit_exceeded | rate_limit_error |
| 503 | server_error / service_unavailable | overloaded_error |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import msgspec

from extproc.model import Api, Rejection
from extproc.outcomes import ANSWERS

LONGEST_RETRY_AFTER_S = 60
"""Older SDKs ignore anything above and come back within seconds."""
_LONGEST_REQUEST_ID = 256

_OPENAI_ERRORS = {
    401: ("authentication_error", "invalid_api_key"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "service_unavailable"),
}
_ANTHROPIC_ERRORS = {
    401: "authentication_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer. `details` shows as Envoy's RESPONSE_CODE_DETAILS; no spaces."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str


def refusal(rejection: Rejection, request_id: str = "") -> Refusal:
    """Raises KeyError for an outcome that is not ours to answer."""
    answer = ANSWERS[rejection.outcome]
    headers = [("content-type", "application/json"), ("x-extproc-reason", answer.reason)]
    if rejection.retry_after_s is not None:
        headers += _retry_after(rejection.retry_after_s)
    if not answer.should_retry:
        headers.append(("x-should-retry", "false"))
    request_id = request_id if _can_be_echoed(request_id) else ""
    if request_id:
        headers.append(("x-request-id", request_id))
    return Refusal(
        status=answer.status,
        headers=tuple(headers),
        body=_body(rejection, answer.status, request_id=request_id),
        details=f"extproc_{answer.reason}",
    )


def _retry_after(seconds: float) -> list[tuple[str, str]]:
    """Whole seconds for everybody, never earlier than the milliseconds that some SDKs prefer. No date, sign or fraction."""
    millis = math.ceil(min(max(seconds, 0.001), LONGEST_RETRY_AFTER_S) * 1000)
    return [("retry-after", str(math.ceil(millis / 1000))), ("retry-after-ms", str(millis))]


def _can_be_echoed(request_id: str) -> bool:
    """Envoy drops *all* our headers when one of them is invalid."""
    return 0 < len(request_id) <= _LONGEST_REQUEST_ID and request_id.isascii() and request_id.isprintable()


def _body(rejection: Rejection, status: int, *, request_id: str) -> bytes:
    match rejection.api:
        case Api.OPENAI:
            kind, code = _OPENAI_ERRORS[status]
            error = {"message": rejection.message, "type": kind, "param": None, "code": code}
            return msgspec.json.encode({"error": error})
        case Api.ANTHROPIC:
            error = {"type": _ANTHROPIC_ERRORS[status], "message": rejection.message}
            return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id or None})
        case _ as never:
            assert_never(never)
