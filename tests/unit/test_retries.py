"""Who says that it is a retry."""

from __future__ import annotations

import pytest

from extproc.retries import is_retry


@pytest.mark.parametrize(
    "headers",
    [
        {"x-stainless-retry-count": "1"},
        {"x-stainless-retry-count": "2"},
        {"x-envoy-attempt-count": "2"},
        {"x-stainless-retry-count": "0", "x-envoy-attempt-count": "3"},
    ],
)
def test_who_has_tried_before_is_a_retry(headers: dict[str, str]) -> None:
    assert is_retry(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-stainless-retry-count": "0"},
        {"x-envoy-attempt-count": "1"},
        *({"x-stainless-retry-count": text} for text in ("", "-1", "1.5", "many", "٣", "9" * 5000)),
    ],
)
def test_first_attempts_and_nonsense_are_not(headers: dict[str, str]) -> None:
    assert not is_retry(headers)
