"""When a refused client should come back. Pure."""

from __future__ import annotations

from extproc.config import RetryAfterPolicy


def retry_after_s(expected_wait_s: float | None, policy: RetryAfterPolicy, *, chance: float) -> float:
    """Seconds until a retry may be let in: the expected wait, spread evenly over +- jitter.

    `expected_wait_s` None (the drain is unknown) or 0 (nothing waits, yet the engines are over their watermark): `base`.

    `chance`: uniform in [0, 1). The middle is clamped so that the whole spread lies within min..max: a spread cut off by a
    clamp would send everyone back at the clamp's value together.
    """
    lowest = policy.min_s / (1 - policy.jitter) if policy.jitter < 1 else policy.max_s
    highest = policy.max_s / (1 + policy.jitter)
    middle = expected_wait_s or policy.base_s
    middle = max(min(lowest, highest), min(middle, highest))
    spread = middle * (1 + policy.jitter * (2 * chance - 1))
    return max(policy.min_s, min(spread, policy.max_s))


def refill_retry_after_s(refill_s: float, policy: RetryAfterPolicy) -> float:
    """Until a quota has refilled. Not spread: earlier is too early, and only clients of one tenant are sent back to that moment."""
    return max(policy.min_s, min(refill_s, policy.max_s))


def draining_retry_after_s(*, chance: float) -> float:
    """1 to 3 s, spread: another replica serves as soon as Envoy has noticed."""
    return 1.0 + 2.0 * chance
