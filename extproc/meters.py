"""What a pool's own traffic says of it: arrivals per second, hold times, the drain. Pure, fed with `now`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from extproc.model import NOTHING, PRIORITIES, Demand, Finished, Hold, Latency, Load, PoolState, Priority, together

_ENOUGH_ENDS = 4
_KEEP = 0.95
"""Weight of the past at each end: about the last twenty ends count."""
_LATENCIES_KEPT = 1024
"""Between two steps of a control loop far fewer finish; this bounds them where no loop runs."""


class RateMeter:
    """Events per second over about the last `window_s` seconds, exponentially weighted, unbiased from the first event on."""

    __slots__ = ("_last", "_sum", "_weight", "window_s")

    def __init__(self, window_s: float = 1.0) -> None:
        self.window_s = window_s
        self._sum = 0.0
        self._weight = 0.0
        self._last: float | None = None

    def add(self, now: float, amount: float = 1.0) -> None:
        self._decay(now)
        self._sum += amount

    def per_s(self, now: float) -> float:
        self._decay(now)
        return self._sum / self._weight if self._weight > 0 else 0.0

    def _decay(self, now: float) -> None:
        """`_weight` is the time seen, decayed alike, so that the quotient is right before the window has filled."""
        if self._last is None:
            self._last = now
            self._weight = 0.05 * self.window_s  # a first event alone says at most 20 windows' worth
            return
        elapsed = now - self._last
        if elapsed > 0:
            keep = math.exp(-elapsed / self.window_s)
            self._sum *= keep
            self._weight = self._weight * keep + self.window_s * (1 - keep)
            self._last = now


class HoldMeter:
    """How long load is held: the mean over recent ends, weighted by tokens, and by Little's law the drain."""

    __slots__ = ("_ends", "_held_s", "_least_s", "_tokens", "mean_hold_s")

    def __init__(self) -> None:
        self.mean_hold_s: float | None = None
        """None while too little has ended to say."""
        self._ends = 0
        self._tokens = 0.0
        self._held_s = 0.0
        self._least_s = math.inf

    def ended(self, load: Load, held_s: float) -> None:
        self._ends += 1
        self._least_s = held_s if held_s <= self._least_s else self._least_s * _KEEP + held_s * (1 - _KEEP)
        self._tokens = self._tokens * _KEEP + load.tokens
        self._held_s = self._held_s * _KEEP + load.tokens * held_s
        if self._ends >= _ENOUGH_ENDS and self._tokens > 0:
            self.mean_hold_s = max(1e-3, self._held_s / self._tokens)

    @property
    def hold(self) -> Hold | None:
        """With the least of late, which longer ones let rise slowly; None while too little has ended to say."""
        return None if self.mean_hold_s is None else Hold(self.mean_hold_s, self._least_s)

    def drain_per_s(self, in_use: Load) -> Load | None:
        """Load that ends per second while `in_use` is held: L / W (Little 1961). None while unknown."""
        hold_s = self.mean_hold_s
        return None if hold_s is None or in_use.empty else in_use.scaled(1 / hold_s)


def expected_wait_s(ahead: Load, free: Load, drain_per_s: Load | None) -> float | None:
    """Seconds until `ahead` has been let in, when `free` is free now (negative: nothing) and `drain_per_s` more every second;
    None: unknown.

    An unbounded dimension (`free` is inf) asks for no wait. The slower of the two decides.
    """
    tokens, slots = ahead.tokens - max(0.0, free.tokens), ahead.slots - max(0.0, free.slots)
    if tokens <= 0 and slots <= 0:
        return 0.0
    if drain_per_s is None:
        return None
    return max(_lasts_s(tokens, drain_per_s.tokens), _lasts_s(slots, drain_per_s.slots))


def _lasts_s(missing: float, drain_per_s: float) -> float:
    if missing <= 0:
        return 0.0
    return missing / drain_per_s if drain_per_s > 0 else math.inf


class Traffic:
    """A pool's traffic as its dispatcher sees it: what is offered, what it costs, how long it is held."""

    __slots__ = ("_holds", "_latencies", "_mean_cost", "_offered", "_sums_s", "_timed")

    def __init__(self) -> None:
        self._offered = tuple(RateMeter() for _ in PRIORITIES)
        self._holds = HoldMeter()
        self._latencies: deque[Latency] = deque(maxlen=_LATENCIES_KEPT)
        self._timed = [0, 0, 0]
        self._sums_s = [0.0, 0.0, 0.0]
        self._mean_cost = NOTHING

    def offered(self, priority: Priority, now: float) -> None:
        self._offered[priority].add(now)

    def costed(self, load: Load) -> None:
        self._mean_cost = load if self._mean_cost.empty else self._mean_cost.scaled(_KEEP) + load.scaled(1 - _KEEP)

    def ended(self, load: Load, held_s: float) -> None:
        self._holds.ended(load, held_s)

    def finished(self, latency: Latency) -> None:
        """A response came to its end by itself, as far as can be seen."""
        self._latencies.append(latency)
        for i, value in enumerate((latency.duration_s, latency.ttft_s, latency.tpot_s)):
            if value is not None:
                self._timed[i] += 1
                self._sums_s[i] += value

    def take_latencies(self) -> tuple[Latency, ...]:
        """Of what has finished since this was last called, the newest at least."""
        taken = tuple(self._latencies)
        self._latencies.clear()
        return taken

    @property
    def total(self) -> Finished:
        """Of all that has finished, for whoever leads several replicas."""
        n0, n1, n2 = self._timed
        s0, s1, s2 = self._sums_s
        return Finished((n0, n1, n2), (s0, s1, s2))

    @property
    def mean_cost(self) -> Load:
        """Of requests offered lately; nothing while there were none."""
        return self._mean_cost

    @property
    def hold(self) -> Hold | None:
        """None while too little has ended to say."""
        return self._holds.hold

    def drain_tokens_per_s(self, in_use: Sequence[Load]) -> float | None:
        """Tokens that end per second while `in_use` per priority is held; None while unknown."""
        drain = self._holds.drain_per_s(together(NOTHING, in_use))
        return None if drain is None else drain.tokens

    def expected_wait_s(self, ahead: Load, total: Load, state: PoolState, priority: Priority) -> float | None:
        """How long a newcomer would wait behind `ahead` while the pool holds `total`; None while the drain is unknown."""
        free = state.limits[priority] - total
        return expected_wait_s(ahead + self._mean_cost, free, self._holds.drain_per_s(total))

    def demand(
        self, now: float, in_use: tuple[Load, Load, Load], waiting: tuple[Load, Load, Load], *, paced: bool
    ) -> Demand:
        first, second, third = (meter.per_s(now) for meter in self._offered)
        return Demand(
            offered_per_s=(first, second, third),
            in_use=in_use,
            waiting=waiting,
            drain_per_s=self._holds.drain_per_s(together(NOTHING, in_use)),
            mean_cost=self._mean_cost,
            paced=paced,
        )
