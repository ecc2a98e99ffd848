"""Whether a request is a retry, as it says itself. Pure.

It is counted, and nothing more: a retry has the priority, the level and the place of a first attempt that came at the same
moment. What a client writes about itself must gain it nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

SDK_HEADER = "x-stainless-retry-count"
"""Attempts before this one: of the SDKs that Stainless generates, OpenAI's and Anthropic's among them."""
PROXY_HEADER = "x-envoy-attempt-count"
"""Attempts up to this one, of a proxy before us that tries again."""


def is_retry(headers: Mapping[str, str]) -> bool:
    """`headers`: names in lower case. What is no plain number says nothing."""
    before, until = headers.get(SDK_HEADER), headers.get(PROXY_HEADER)
    return (before is not None and _above(before, 0)) or (until is not None and _above(until, 1))


def _above(text: str, least: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > least
