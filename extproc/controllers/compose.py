"""One pool's decision: its controllers together, what holds while the engines cannot be seen, the operator's override,
and the reserved slots. The laws themselves live in their own modules.

Order and meaning:

1. Limits take the minimum, rejections and saturation the maximum; the reason names what binds.
2. No engines configured: the members' limit, or `failure.unknownLimit` where they know none; nobody is refused.
3. Engines configured, none reporting: `failure.rejection` of the newcomers, lowest priority first. The last good limit
   stays P0's; P1 and P2 have `failure.capacity` x its KV tokens, or x its requests where it knows no tokens.
   `failure.unknownLimit` where no capacity was ever seen. Until the first answers can have come (`failure.staleAfter`
   from the first step) nobody is refused: not having asked is no outage.
4. The override comes last: it is how an operator overrules everything above, failure rules included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from extproc.config import ControllerName, FailurePolicy, PoolPolicy, QueuePolicy, ShedOrder
from extproc.controllers.fixed import Fixed, as_load
from extproc.controllers.fused import Fused, FusedMemory
from extproc.controllers.pid import Pid, PidMemory
from extproc.controllers.protocol import Controller
from extproc.controllers.shed import spread
from extproc.controllers.vegas import Vegas, VegasMemory
from extproc.controllers.watermark import Watermark
from extproc.fleet import EngineSample, Fleet
from extproc.model import NOTHING, PRIORITIES, UNLIMITED, Demand, Load, Pace, PoolState, least

Limits = tuple[Load, Load, Load]

LawMemory = VegasMemory | PidMemory | FusedMemory
"""Of the laws that remember something."""
LM = TypeVar("LM", VegasMemory, PidMemory, FusedMemory)

CONTROLLERS: dict[ControllerName, Callable[[PoolPolicy, FailurePolicy, Sequence[LawMemory]], Controller]] = {
    ControllerName.FIXED: lambda pool, failure, _: Fixed(pool.fixed, failure),
    ControllerName.WATERMARK: lambda pool, failure, _: Watermark(pool.watermark, failure),
    ControllerName.VEGAS: lambda pool, failure, laws: Vegas(pool.vegas, failure, _kept(VegasMemory, laws)),
    ControllerName.PID: lambda pool, failure, laws: Pid(pool.pid, failure, _kept(PidMemory, laws)),
    ControllerName.FUSED: lambda pool, failure, laws: Fused(pool, failure, _kept(FusedMemory, laws)),
}


_MEASURING = frozenset((ControllerName.PID, ControllerName.FUSED))
"""Their limits are shares of what the engines hold."""


_REMEMBERING = (Vegas, Pid, Fused)


def _kept(kind: type[LM], laws: Sequence[LawMemory]) -> LM | None:
    """A predecessor's memory of this kind, if it had such a law."""
    return next((memory for memory in laws if isinstance(memory, kind)), None)


GOOD_FOR_S = 5.0
"""A larger limit counts as the last good one for this long. When all engines vanish at once their samples still expire
one after the other, and the limit shrinks with each: half of what the last of eight left would be a sixteenth."""


class Memory(Struct, frozen=True):
    """What a pool's composition remembers. `good`: the last good limit, which held at `good_at`, with the pace of then;
    `laws`: what its members remember themselves; others: last known."""

    started_at: float | None = None
    seen: bool = False
    good: Limits | None = None
    good_at: float = 0.0
    pace: Pace | None = None
    engine_max_tokens: int | None = None
    expected_output_tokens: float | None = None
    slot_tokens: float = 0.0
    laws: tuple[LawMemory, ...] = ()


_NOTHING_YET = Memory()


def mean_output_tokens(samples: Sequence[EngineSample]) -> float | None:
    """Output tokens per request over the engines, weighted by requests finished (generation rate / mean output).

    Engines that state a mean without a rate make it a plain mean: a weight would have to be invented.
    """
    stated = [
        (mean, sample.generation_tokens_per_s)
        for sample in samples
        if (mean := sample.mean_output_tokens) is not None and mean > 0
    ]
    if not stated:
        return None
    weights = [rate / max(1.0, mean) for mean, rate in stated if rate is not None and rate > 0]
    if len(weights) < len(stated):
        return sum(mean for mean, _ in stated) / len(stated)
    return sum(mean * weight for (mean, _), weight in zip(stated, weights, strict=True)) / sum(weights)


def mean_ttft_s(samples: Sequence[EngineSample]) -> float | None:
    """Over the engines that had first tokens lately. Not remembered: requests are refused for it, and if all were, nothing
    would ever show that the engines are fast again."""
    stated = [sample.ttft_mean_s for sample in samples if sample.ttft_mean_s is not None]
    return sum(stated) / len(stated) if stated else None


def merge(members: Sequence[PoolState]) -> PoolState:
    """Limits minimum, rejections and saturation maximum. A member is named where its limit or its rejection binds."""
    limits, rejection = members[0].limits, members[0].rejection
    for member in members[1:]:
        limits = _each(least, limits, member.limits)
        rejection = (
            max(rejection[0], member.rejection[0]),
            max(rejection[1], member.rejection[1]),
            max(rejection[2], member.rejection[2]),
        )
    binding = [m.reason for m in members if _binds(m, limits, rejection)]
    return replace(
        members[0],
        limits=limits,
        rejection=rejection,
        saturation=max(member.saturation for member in members),
        pace=next((member.pace for member in members if member.pace is not None), None),
        reason="+".join(dict.fromkeys(binding)) or "open",
    )


def _binds(member: PoolState, limits: Limits, rejection: tuple[float, float, float]) -> bool:
    own = member.limits[0]
    tokens = own.tokens < math.inf and own.tokens == limits[0].tokens
    slots = own.slots < math.inf and own.slots == limits[0].slots
    return tokens or slots or (rejection[2] > 0 and member.rejection == rejection)


def _each(pick: Callable[[Load, Load], Load], a: Limits, b: Limits) -> Limits:
    return pick(a[0], b[0]), pick(a[1], b[1]), pick(a[2], b[2])


def _blindly(limits: Limits, share: float) -> Limits:
    """P0's limit whole, of the others' a share. What grows unseen is what a cache holds; how many run is counted."""
    return limits[0], _shrunk(limits[1], share), _shrunk(limits[2], share)


def _shrunk(limit: Load, share: float) -> Load:
    """Never less than the one slot without which nothing could ever run."""
    if limit.tokens < math.inf:
        return Load(limit.tokens * share, limit.slots)
    return Load(limit.tokens, max(min(1.0, limit.slots), limit.slots * share))


def reserve(queues: Sequence[QueuePolicy], limit: Load, slot_tokens: float) -> Limits:
    """`PoolState.reserved`: what each priority and those above it keep from the ones below, at most the limit itself.

    Cumulative: P1's slots are kept from P2 on top of P0's, so with 4 for P0 and 2 for P1, P1 and P2 together leave 4
    free and P2 alone leaves 6. A slot is one sequence and, where the limit counts tokens, the tokens of a mean request
    as last known (0 until then). P2's own entry binds nobody: there is no priority below it.
    """
    own = {queue.priority: queue.reserved_slots for queue in queues}
    reserved = []
    slots = 0.0
    for priority in PRIORITIES:
        slots += max(0, own.get(priority, 0))
        tokens = slots * slot_tokens if limit.tokens < math.inf else 0.0
        reserved.append(least(Load(tokens, slots), limit) if slots else NOTHING)
    return reserved[0], reserved[1], reserved[2]


class PoolController:
    """All of one pool's controllers; itself a `Controller`. `memory` may be a predecessor's after a reload."""

    def __init__(
        self,
        pool: PoolPolicy,
        *,
        queues: Sequence[QueuePolicy],
        failure: FailurePolicy,
        memory: Memory = _NOTHING_YET,
    ) -> None:
        self._pool = pool
        self._queues = tuple(queues)
        self._failure = failure
        self._members = tuple(CONTROLLERS[name](pool, failure, memory.laws) for name in pool.controllers)
        follows_fixed = ControllerName.FIXED in pool.controllers and pool.fixed.limit == "auto"
        self._counts = ControllerName.FUSED in pool.controllers
        self._pressure_at = 1.0 if self._counts else pool.watermark.high
        self._needs_capacity = follows_fixed or not _MEASURING.isdisjoint(pool.controllers)
        self.memory = memory

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        reporting = fleet.reporting(now, self._failure.stale_after_s)
        members = [c.step(now, fleet, demand=demand, previous=previous) for c in self._members]
        state = merge(members) if members else PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED), reason="open")
        self.memory = self._remember(now, state, reporting=reporting, demand=demand)
        if not fleet.configured:
            state = self._without_engines(state)
        elif not reporting:
            state = self._blind(now, state, demand=demand)
        elif self._needs_capacity and state.limits[0] == UNLIMITED:
            state = replace(state, limits=self.memory.good or self._unknown(), reason=_also(state, "capacity-unknown"))
        state = self._override(state)
        return replace(
            state,
            reserved=reserve(self._queues, state.limits[0], self.memory.slot_tokens),
            pressure_at=self._pressure_at,
            at=now,
            engines_reporting=len(reporting),
            engine_max_tokens=self.memory.engine_max_tokens,
            expected_output_tokens=self.memory.expected_output_tokens,
            expected_ttft_s=mean_ttft_s(reporting),
        )

    def _remember(self, now: float, state: PoolState, *, reporting: Sequence[EngineSample], demand: Demand) -> Memory:
        memory = self.memory
        if memory.started_at is None:
            memory = replace(memory, started_at=now)
        if laws := tuple([member.memory for member in self._members if isinstance(member, _REMEMBERING)]):
            memory = replace(memory, laws=laws)
        if demand.mean_cost.tokens > 0:
            memory = replace(memory, slot_tokens=demand.mean_cost.tokens)
        if not reporting:
            return memory
        held = [sample.kv_capacity_tokens for sample in reporting if sample.kv_capacity_tokens is not None]
        good = _good(state.limits, sum(held))
        keeps = good is None or (
            memory.good is not None and now - memory.good_at <= GOOD_FOR_S and not memory.good[0].fits(good[0])
        )
        return replace(
            memory,
            seen=True,
            good=memory.good if keeps else good,
            good_at=memory.good_at if keeps else now,
            pace=memory.pace if keeps else state.pace,
            engine_max_tokens=max(held) if held else memory.engine_max_tokens,
            expected_output_tokens=mean_output_tokens(reporting) or memory.expected_output_tokens,
        )

    def _without_engines(self, state: PoolState) -> PoolState:
        limits = self._unknown() if self._needs_capacity and state.limits[0] == UNLIMITED else state.limits
        return replace(state, limits=limits, rejection=(0.0, 0.0, 0.0), saturation=0.0, reason="no-engines")

    def _blind(self, now: float, state: PoolState, *, demand: Demand) -> PoolState:
        memory, failure = self.memory, self._failure
        limits = state.limits if memory.good is None else _each(least, state.limits, memory.good)
        known = limits[0] != UNLIMITED
        started_at = now if memory.started_at is None else memory.started_at
        if not memory.seen and now - started_at <= failure.stale_after_s:
            limits = limits if known else self._unknown()
            return replace(state, limits=limits, rejection=(0.0, 0.0, 0.0), saturation=0.0, reason="starting")
        return replace(
            state,
            limits=_blindly(limits, failure.capacity) if known else self._unknown(),
            pace=None if memory.pace is None else memory.pace.upright(),
            rejection=spread(failure.rejection, ShedOrder.LOWEST_FIRST, demand),
            saturation=self._pressure_at,
            reason="engines-silent",
        )

    def _unknown(self) -> Limits:
        limit = as_load(self._failure.unknown_limit)
        return limit, limit, limit

    def _override(self, state: PoolState) -> PoolState:
        override = self._pool.override
        if override.limit is not None:
            limit = as_load(override.limit)
            state = replace(state, limits=(limit, limit, limit), pace=None, reason=_also(state, "override"))
        if override.rejection is not None:
            rate = min(1.0, max(0.0, override.rejection))
            state = replace(state, rejection=(rate, rate, rate), reason=_also(state, "override"))
        return state


def _good(limits: Limits, capacity_tokens: int) -> Limits | None:
    """What to remember of a step with engines in sight: its limits, or where the laws set none, the KV tokens seen."""
    if limits[0] != UNLIMITED:
        return limits
    if capacity_tokens <= 0:
        return None
    seen = Load(capacity_tokens, math.inf)
    return seen, seen, seen


def _also(state: PoolState, reason: str) -> str:
    return state.reason if reason in state.reason.split("+") else f"{state.reason}+{reason}"
