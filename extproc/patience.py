"""How long a client waits for the first byte of its answer, as its request's headers say. Pure.

The SDKs of OpenAI and Anthropic say it by themselves; the policy names further headers. The smallest wins. What is no
plain positive number is ignored: a client that says nonsense is treated like one that says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from extproc.config import DeadlinesPolicy, DeadlineUnit

SDK_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds: the time-out of one read, and of the request, of the SDKs that Stainless generates."""
_LONGEST = 40
"""Characters of a header that is read, and remembered."""
_NUMBER = re.compile(r"\d{1,10}(?:\.\d{1,9})?", re.ASCII)
_GRPC = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_GRPC_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Patience:
    """The deadline headers of one policy."""

    def __init__(self, policy: DeadlinesPolicy) -> None:
        self._headers = [(name, DeadlineUnit.S) for name in SDK_HEADERS]
        self._headers += [(header.name.lower(), header.unit) for header in policy.headers]

    def of(self, headers: Mapping[str, str]) -> float:
        """Seconds from now; inf where no header says it. `headers`: names in lower case."""
        least_s = math.inf
        for name, unit in self._headers:
            text = headers.get(name)
            if text is not None and len(text) <= _LONGEST and 0 < (said_s := _seconds(text, unit)) < least_s:
                least_s = said_s
        return least_s


@lru_cache(maxsize=256)
def _seconds(text: str, unit: DeadlineUnit) -> float:
    """inf for what cannot be read. Clients of one kind all say the same."""
    text = text.strip()
    if unit is DeadlineUnit.GRPC:
        found = _GRPC.fullmatch(text)
        return int(found[1]) * _GRPC_S[found[2]] if found else math.inf
    if not _NUMBER.fullmatch(text):
        return math.inf
    return float(text) / 1000 if unit is DeadlineUnit.MS else float(text)
