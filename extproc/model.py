"""The words of the project as frozen values, shared by every layer. No behaviour beyond arithmetic on themselves.

Units: seconds are float and end in `_s`; tokens are KV-cache tokens and end in `_tokens`; one slot is one sequence in
an engine's batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from msgspec import Struct


class Priority(IntEnum):
    """How much a request matters; P0 most. Inside the process an index, on every wire the label `P0`, `P1`, `P2`."""

    P0 = 0
    P1 = 1
    P2 = 2

    def __str__(self) -> str:
        return self.name


PRIORITIES = tuple(Priority)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A quota: what may be used per second, inf where there is no bound. `burst_s`: after a pause so many seconds' worth may
    be used at once."""

    tokens_per_s: float = math.inf
    requests_per_s: float = math.inf
    burst_s: float = 60.0


class Tenant(Struct, frozen=True):
    """Who pays. `weight`: its share of a contended priority in proportion to the other tenants' weights. `quota` None:
    it may use what there is."""

    name: str = "default"
    weight: float = 1.0
    quota: Allowance | None = None


DEFAULT_TENANT = Tenant()


class Api(StrEnum):
    """Whose API a request speaks: decides the shape of a refusal's body."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Outcome(StrEnum):
    """How a request left us. Exactly one per request; `outcomes.py` maps each to status, reason and Retry-After."""

    ADMITTED = "admitted"
    PASSED = "passed"
    SHED = "shed"
    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    EARLY_DROP = "early-drop"
    DEADLINE = "deadline"
    QUOTA = "quota"
    UNAUTHENTICATED = "unauthenticated"
    TOO_LARGE = "too-large"
    UNAVAILABLE = "unavailable"
    DRAINING = "draining"
    CLIENT_GONE = "client-gone"


class End(StrEnum):
    """How a ticket ended; decides what its latency says to the controllers."""

    COMPLETED = "completed"
    """The response ended by itself: its time counts."""
    IGNORED = "ignored"
    """Says nothing about the engines: the client left."""
    DROPPED = "dropped"
    """Time-out, 5xx or reset: a sign to back off."""
    GHOST = "ghost"
    """The stream is gone but the request may still run upstream: its hold becomes ghost load."""


class Load(Struct, frozen=True, gc=False):
    """An amount of a pool's capacity: KV tokens and sequence slots. `inf` means no bound (limits only)."""

    tokens: float = 0.0
    slots: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.tokens + other.tokens, self.slots + other.slots)

    def __sub__(self, other: Load) -> Load:
        return Load(self.tokens - other.tokens, self.slots - other.slots)

    def scaled(self, factor: float) -> Load:
        return Load(self.tokens * factor, self.slots * factor)

    def fits(self, limit: Load) -> bool:
        return self.tokens <= limit.tokens and self.slots <= limit.slots

    def share_of(self, limit: Load) -> float:
        """The larger of the two shares, 0..; an unbounded dimension has share 0, a zero limit share 1."""
        tokens = 0.0 if limit.tokens == math.inf else self.tokens / limit.tokens if limit.tokens > 0 else 1.0
        slots = 0.0 if limit.slots == math.inf else self.slots / limit.slots if limit.slots > 0 else 1.0
        return max(tokens, slots)

    @property
    def empty(self) -> bool:
        return self.tokens <= 0 and self.slots <= 0


NOTHING = Load()
UNLIMITED = Load(math.inf, math.inf)


def together(ghosts: Load, in_use: Sequence[Load]) -> Load:
    """The sum of what is held: of every request in one step, hence no `sum`."""
    first, second, third = in_use
    return Load(
        ghosts.tokens + first.tokens + second.tokens + third.tokens,
        ghosts.slots + first.slots + second.slots + third.slots,
    )


def least(a: Load, b: Load) -> Load:
    """The tighter of two limits, per dimension."""
    return Load(min(a.tokens, b.tokens), min(a.slots, b.slots))


class Hold(Struct, frozen=True, gc=False):
    """How long load is held, from admission to its end: in the mean, and the least of late. Seconds.

    The defaults stand for what is unknown while no request has ended yet.
    """

    mean_s: float = 10.0
    least_s: float = 0.0


class Cost(Struct, frozen=True, gc=False):
    """What one request takes from a pool: estimated prompt tokens, expected output tokens, sequences."""

    prompt_tokens: int
    output_tokens: int
    sequences: int = 1

    @property
    def load(self) -> Load:
        """Prompt counted once (its blocks are shared by the sequences), output once per sequence."""
        return Load(self.prompt_tokens + self.output_tokens * self.sequences, self.sequences)


class Rejection(Struct, frozen=True, gc=False):
    """A request refused: what is said to the client. `retry_after_s` None: no Retry-After header."""

    outcome: Outcome
    message: str
    api: Api = Api.OPENAI
    retry_after_s: float | None = None
    priority: Priority | None = None
    pool: str = ""


class Latency(Struct, frozen=True, gc=False):
    """How long one finished request took, or the means of what a replica reports of several. None: not measured.

    `duration_s`: from admission to the end of the response. An answer that its client left looks like a short one, so
    no law takes it for a signal. `ttft_s`: from admission to the first token. `tpot_s`: per token after the first.
    """

    duration_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What has finished since a process started: how many were timed, and the sum of their seconds, each for duration, TTFT
    and TPOT. Absolute, so that a report of it that is lost or repeated changes nothing."""

    counts: tuple[float, float, float] = (0, 0, 0)
    sums_s: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def mean_since(self, before: Finished) -> Latency | None:
        """Means over what has finished since `before`; None: nothing has."""
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        sums_s = [now - then for now, then in zip(self.sums_s, before.sums_s, strict=True)]
        if counts[0] <= 0:
            return None
        _, ttft_s, tpot_s = (s / n if n > 0 else None for n, s in zip(counts, sums_s, strict=True))
        return Latency(sums_s[0] / counts[0], ttft_s, tpot_s)


class Demand(Struct, frozen=True):
    """A pool's traffic over the last seconds as its dispatcher saw it.

    `offered_per_s`: requests arriving per priority and second; `in_use`, `waiting`: per priority, now;
    `drain_per_s`: load ended per second (None while too little has ended to say);
    `mean_cost`: of requests offered lately (`NOTHING` while there were none);
    `paced`: somebody waits for the pace, and for nothing else;
    `latencies`: of what has finished since the step before this one, in order: each is told to one step only;
    `whole`: it is the traffic of all replicas, not of one of them that cannot hear the others.
    """

    offered_per_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    in_use: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
    waiting: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
    drain_per_s: Load | None = None
    mean_cost: Load = NOTHING
    paced: bool = False
    latencies: tuple[Latency, ...] = ()
    whole: bool = True


class Pace(Struct, frozen=True, gc=False):
    """How fast prompts may follow each other into a pool, over all replicas.

    `tokens_per_s`: prompt tokens that its engines prefill. `depths[p]`: prompt tokens that may be on their way, by that
    rate, when one of priority p goes: what it finds before it in the engines, which serve first come, first served.
    `lean`: share of the rate, and of the depths of P1 and P2, that holds while the engines still have a line to work off, 0..1.
    """

    tokens_per_s: float
    depths: tuple[float, float, float]
    lean: float = 1.0

    @property
    def let_in_per_s(self) -> float:
        """Prompt tokens."""
        return self.tokens_per_s * self.lean

    def depth(self, priority: Priority) -> float:
        """Prompt tokens; see `depths`."""
        return self.depths[priority] * (1.0 if priority is Priority.P0 else self.lean)

    def upright(self) -> Pace:
        """Where no line is in sight."""
        return self if self.lean == 1 else Pace(self.tokens_per_s, self.depths)

    def shared(self, replicas: int) -> Pace:
        """Each one's part."""
        if replicas <= 1:
            return self
        first, second, third = (depth / replicas for depth in self.depths)
        return Pace(self.tokens_per_s / replicas, (first, second, third), self.lean)


class PoolState(Struct, frozen=True):
    """What the controllers decided for a pool; every replica obeys it.

    `limits[p]`: the pool's total load may not exceed it after admitting a request of priority p (P0's is the pool's limit).
    `reserved[p]`: load held back for p and those above it: priorities below p together stay within `limits[P0] - reserved`.
    `rejection[p]`: share of newcomers of priority p refused outright, 0..1.
    `saturation`: 0 idle, 1 at the limit, as the engines show it (under `fused`, as whoever waits shows it); the load in use is
    compared apart, where it is known.
    `pressure_at`: saturation from which drop policies act (the high watermark).
    `engine_max_tokens`: what the largest engine holds, None unknown. `expected_output_tokens`: mean of late, None unknown.
    `expected_ttft_s`: the engines' mean time to first token over the last seconds, None while they showed none.
    `pace`: how fast prompts may follow each other; None: as they come.
    """

    limits: tuple[Load, Load, Load]
    reserved: tuple[Load, Load, Load] = (NOTHING, NOTHING, NOTHING)
    rejection: tuple[float, float, float] = (0.0, 0.0, 0.0)
    saturation: float = 0.0
    pressure_at: float = 0.80
    reason: str = "initial"
    at: float = 0.0
    engines_reporting: int = 0
    engine_max_tokens: int | None = None
    expected_output_tokens: float | None = None
    expected_ttft_s: float | None = None
    pace: Pace | None = None
