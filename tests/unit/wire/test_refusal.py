"""What a refused client gets, per outcome and API."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.model import Api, Outcome, Rejection
from extproc.outcomes import ANSWERS
from extproc.wire.refusal import Refusal, refusal


def _headers(answer: Refusal) -> dict[str, str]:
    headers = dict(answer.headers)
    assert len(headers) == len(answer.headers)
    return headers


@pytest.mark.parametrize("outcome", ANSWERS)
@pytest.mark.parametrize("api", Api)
def test_every_outcome_has_status_reason_and_json(outcome: Outcome, api: Api) -> None:
    answer = refusal(Rejection(outcome, "message", api=api, retry_after_s=3.0))
    headers = _headers(answer)
    assert answer.status in (401, 413, 429, 503)
    assert headers["x-extproc-reason"] == ANSWERS[outcome].reason
    assert headers["content-type"] == "application/json"
    assert ("x-should-retry" in headers) is not ANSWERS[outcome].should_retry
    assert " " not in answer.details
    assert json.loads(answer.body)["error"]["message"] == "message"


@pytest.mark.parametrize(
    ("outcome", "kind", "code"),
    [
        (Outcome.SHED, "rate_limit_error", "rate_limit_exceeded"),
        (Outcome.TOO_LARGE, "invalid_request_error", "request_too_large"),
        (Outcome.UNAVAILABLE, "server_error", "service_unavailable"),
    ],
)
def test_openai_shape(outcome: Outcome, kind: str, code: str) -> None:
    body = json.loads(refusal(Rejection(outcome, "m")).body)
    assert body == {"error": {"message": "m", "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.SHED, "rate_limit_error"),
        (Outcome.TOO_LARGE, "request_too_large"),
        (Outcome.DRAINING, "overloaded_error"),
    ],
)
def test_anthropic_shape(outcome: Outcome, kind: str) -> None:
    body = json.loads(refusal(Rejection(outcome, "m", api=Api.ANTHROPIC), "req-1").body)
    assert body == {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": "req-1"}


@pytest.mark.parametrize(
    ("seconds", "whole", "millis"),
    [(0.25, "1", "250"), (1.0, "1", "1000"), (1.0001, "2", "1001"), (59.9, "60", "59900"), (3600.0, "60", "60000")],
)
def test_retry_after_is_whole_seconds_never_earlier_than_the_milliseconds(
    seconds: float, whole: str, millis: str
) -> None:
    headers = _headers(refusal(Rejection(Outcome.SHED, "m", retry_after_s=seconds)))
    assert (headers["retry-after"], headers["retry-after-ms"]) == (whole, millis)


@given(st.floats(allow_nan=False))
def test_retry_after_stays_in_the_range_that_clients_honour(seconds: float) -> None:
    headers = _headers(refusal(Rejection(Outcome.SHED, "m", retry_after_s=seconds)))
    assert 1 <= int(headers["retry-after"]) <= 60
    assert 1 <= int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1000


def test_without_a_time_there_is_no_retry_after() -> None:
    assert "retry-after" not in _headers(refusal(Rejection(Outcome.TOO_LARGE, "m")))


def test_the_request_id_is_echoed() -> None:
    assert _headers(refusal(Rejection(Outcome.SHED, "m"), "abc"))["x-request-id"] == "abc"


@pytest.mark.parametrize("request_id", ["", "a\nb", "caf\xe9", "\x00", "x" * 257])
def test_an_id_that_would_cost_us_all_headers_is_not_echoed(request_id: str) -> None:
    assert "x-request-id" not in _headers(refusal(Rejection(Outcome.SHED, "m"), request_id))
