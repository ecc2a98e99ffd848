"""How long clients wait, from their headers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import DeadlineHeader, DeadlinesPolicy, DeadlineUnit
from extproc.patience import Patience

PATIENCE = Patience(
    DeadlinesPolicy(
        headers=(
            DeadlineHeader(name="X-Request-Timeout"),
            DeadlineHeader(name="x-envoy-expected-rq-timeout-ms", unit=DeadlineUnit.MS),
            DeadlineHeader(name="grpc-timeout", unit=DeadlineUnit.GRPC),
        )
    )
)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, math.inf),
        ({"x-stainless-read-timeout": "600"}, 600),
        ({"x-stainless-read-timeout": "600.0", "x-stainless-timeout": "30"}, 30),
        ({"x-request-timeout": "2.5"}, 2.5),
        ({"x-request-timeout": " 2 "}, 2),
        ({"x-envoy-expected-rq-timeout-ms": "1500", "x-request-timeout": "2"}, 1.5),
        ({"grpc-timeout": "2H"}, 7200),
        ({"grpc-timeout": "3M"}, 180),
        ({"grpc-timeout": "4S"}, 4),
        ({"grpc-timeout": "250m"}, 0.25),
        ({"grpc-timeout": "5000u"}, 0.005),
        ({"grpc-timeout": "99999999n"}, 0.099999999),
        ({"x-request-timeout": "0", "grpc-timeout": "9S"}, 9),
    ],
)
def test_the_smallest_wins(headers: dict[str, str], seconds: float) -> None:
    assert PATIENCE.of(headers) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0.0", "-1", "+1", "nan", "inf", "1e3", "1_000", "0x10", "2s", "None", "\u0662", "9" * 11, "1,2", "."],
)
def test_nonsense_is_ignored(text: str) -> None:
    assert PATIENCE.of({"x-stainless-read-timeout": text, "x-envoy-expected-rq-timeout-ms": text}) == math.inf


@pytest.mark.parametrize("text", ["", "0S", "5", "S", "5s", "-5S", "5 S", "1.5S", "123456789S", "\u0662S"])
def test_grpc_nonsense_is_ignored(text: str) -> None:
    assert PATIENCE.of({"grpc-timeout": text}) == math.inf


def test_headers_that_the_policy_does_not_name_are_not_read() -> None:
    assert Patience(DeadlinesPolicy()).of({"x-request-timeout": "1", "grpc-timeout": "1S"}) == math.inf


@given(st.dictionaries(st.sampled_from(["x-stainless-timeout", "x-request-timeout", "grpc-timeout"]), st.text()))
def test_no_text_raises_and_patience_is_above_zero(headers: dict[str, str]) -> None:
    assert PATIENCE.of(headers) > 0


def test_a_header_longer_than_any_number_is_nonsense_and_not_remembered() -> None:
    assert PATIENCE.of({"x-stainless-read-timeout": "1" + " " * 100}) == math.inf
