"""A tenant's quota as a bucket that refills steadily, once for tokens and once for requests. Pure: the reference of
`redis/quota.lua`.

The generic cell rate algorithm in its form of virtual scheduling (ITU-T I.371): all that is kept is the moment at which the
bucket is full again if nobody uses more. Use moves that moment on by the time in which it refills, so that everything here
is seconds: what is owed stays the same part of a quota that changes, and where a tenant uses nothing there is nothing to
keep. What turns out to have been used by more hands at once than the burst allows is owed, and paid off by waiting.
"""

from __future__ import annotations

import math

from msgspec import Struct

from extproc.model import Allowance, Tenant

_SLACK_S = 0.001
"""Sums of floats that should fill the burst exactly may be above it by so much."""


class Due(Struct, frozen=True, gc=False):
    """Use, as the seconds in which the quota refills it. Negative: given back."""

    tokens_s: float = 0.0
    requests_s: float = 0.0

    def __add__(self, other: Due) -> Due:
        return Due(self.tokens_s + other.tokens_s, self.requests_s + other.requests_s)

    def scaled(self, factor: float) -> Due:
        return Due(self.tokens_s * factor, self.requests_s * factor)

    def at_most(self, other: Due) -> Due:
        return Due(min(self.tokens_s, other.tokens_s), min(self.requests_s, other.requests_s))


NOTHING_DUE = Due()


class Bucket(Struct, frozen=True, gc=False):
    """When the quota is whole again: clock seconds, in the past where it is whole."""

    tokens_at: float = -math.inf
    requests_at: float = -math.inf

    def owed(self, now: float) -> Due:
        """How long it takes to refill."""
        return Due(max(0.0, self.tokens_at - now), max(0.0, self.requests_at - now))

    def after(self, due: Due, now: float) -> Bucket:
        """What is given back after it has refilled by itself is lost."""
        return Bucket(max(self.tokens_at, now) + due.tokens_s, max(self.requests_at, now) + due.requests_s)

    def wait_s(self, due: Due, allowance: Allowance, now: float) -> float:
        """Seconds until so much may be used; 0: now. What is more than the whole burst may be used when nothing is owed."""
        owed, burst_s = self.owed(now), allowance.burst_s
        return max(_over_s(owed.tokens_s, due.tokens_s, burst_s), _over_s(owed.requests_s, due.requests_s, burst_s))

    def left(self, allowance: Allowance, now: float) -> tuple[float, float]:
        """Tokens and requests that may be used now; inf where they are not limited."""
        owed, burst_s = self.owed(now), allowance.burst_s
        return (
            _left(allowance.tokens_per_s, burst_s - owed.tokens_s),
            _left(allowance.requests_per_s, burst_s - owed.requests_s),
        )


UNTOUCHED = Bucket()
"""Nothing is owed."""


def _over_s(owed_s: float, due_s: float, burst_s: float) -> float:
    """Who takes nothing, as where there is no limit, waits for nothing."""
    over_s = owed_s + min(due_s, burst_s) - burst_s
    return over_s if due_s > 0 and over_s > _SLACK_S else 0.0


def _left(per_s: float, for_s: float) -> float:
    return per_s if per_s == math.inf else per_s * max(0.0, for_s)


def quota_of(tenant: Tenant) -> Allowance:
    """Of a tenant that has one; nobody asks for others."""
    if tenant.quota is None:
        raise AssertionError(f"tenant {tenant.name} has no quota")
    return tenant.quota


def due(allowance: Allowance, tokens: float, *, requests: int = 1) -> Due:
    """What a request of so many tokens takes from an allowance."""
    return Due(tokens / allowance.tokens_per_s, requests / allowance.requests_per_s)
