"""The waiters of one pool: a band per priority, strict between bands, first come within one, and the drop policies.

Pure: takes `now` and `pressure` (the pool is at or above its high watermark), returns who is to be refused and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from extproc.config import DropPolicy, QueuePolicy
from extproc.model import NOTHING, Load, Outcome, Priority
from extproc.queues.codel import Codel
from extproc.queues.heap import Handle, Heap

T = TypeVar("T")

TARGET_SHARE = 1 / 15
"""CoDel's target as a share of the queue's time-out, and its interval: 1 s for P1's 15 s, a third of its TTFT target of 3 s."""


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One request in a band. `deadline`: clock seconds at which its wait ends in any case, with outcome `late`."""

    item: T
    priority: Priority
    load: Load
    body_bytes: int
    arrived: float
    deadline: float
    late: Outcome = Outcome.QUEUE_TIMEOUT
    judged: bool = False
    """The drop policy has let it wait. Until then it only asks for a place, and the policy's pressure rules pass it by."""
    order: Handle[Waiter[T]] | None = None
    due: Handle[Waiter[T]] | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the drop policies must know of a newcomer. `patience_s`: the longest wait that is of use to its client (inf: any)."""

    priority: Priority
    now: float
    body_bytes: int = 0
    patience_s: float = math.inf


class Band(Generic[T]):
    """One priority's queue."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.count = 0
        """Waiters. An attribute, because every request reads it several times."""
        self.load = NOTHING
        self.body_bytes = 0
        self._order: Heap[Waiter[T]] = Heap()
        self._deadlines: Heap[Waiter[T]] = Heap()
        target_s = policy.timeout_s * TARGET_SHARE
        self.codel = Codel(target_s=target_s, interval_s=target_s)

    def push(self, waiter: Waiter[T]) -> None:
        waiter.order = self._order.push(waiter.arrived, waiter)
        waiter.due = self._deadlines.push(waiter.deadline, waiter)
        self.count += 1
        self.load += waiter.load
        self.body_bytes += waiter.body_bytes

    def remove(self, waiter: Waiter[T]) -> bool:
        """False when it was gone already."""
        if waiter.order is None or waiter.due is None or not self._order.remove(waiter.order):
            return False
        self._deadlines.remove(waiter.due)
        self.count -= 1
        self.load = self.load - waiter.load if self.count else NOTHING
        self.body_bytes -= waiter.body_bytes
        return True

    def heads(self, most: int) -> list[Waiter[T]]:
        return self._order.smallest(most)

    def head(self) -> Waiter[T] | None:
        return self._order.first()

    def full_for(self, body_bytes: int) -> bool:
        return self.count >= self.policy.max_queue_size or self.body_bytes + body_bytes > self.policy.max_queue_bytes

    def overdue(self, now: float, *, pressure: bool) -> tuple[Waiter[T], Outcome] | None:
        """The next waiter whose wait is over, and why; None when all may wait on."""
        head = self.head()
        self.codel.observe(now, head.arrived if head else None)
        if head is None:
            return None
        if pressure and (until := self._pressed_until(head)) is not None and now >= until:
            return head, Outcome.EARLY_DROP
        first = self._deadlines.first()
        return (first, first.late) if first is not None and now >= first.deadline else None

    def next_due(self, *, pressure: bool) -> float | None:
        """The earliest moment at which `overdue` may have something to say, if nothing else changes."""
        head = self.head()
        if head is None:
            return None
        deadline = self._deadlines.first_key()
        ends = [] if deadline is None else [deadline]
        if pressure and (until := self._pressed_until(head)) is not None:
            ends.append(until)
        return min(ends)

    def longest_wait_s(self, now: float, *, pressure: bool) -> float:
        """How long a newcomer may wait by the time-out and the drop policy."""
        if not pressure or self.policy.drop_policy is not DropPolicy.EARLY_DROP:
            return self.policy.timeout_s
        pressed = min(self.policy.timeout_s, self.policy.max_wait_under_pressure_s)
        return min(pressed, 2 * self.codel.target_s) if self.codel.standing(now) else pressed

    def _pressed_until(self, head: Waiter[T]) -> float | None:
        """Until when the head may stay while there is pressure; None: as long as without."""
        if not head.judged:
            return None
        match self.policy.drop_policy:
            case DropPolicy.TAIL:
                return None
            case DropPolicy.EARLY_DROP:
                return min(self.codel.drop_at(head.arrived), head.arrived + self.policy.max_wait_under_pressure_s)
            case DropPolicy.FAST_REJECT:
                return head.arrived


class Bands(Generic[T]):
    """All queues of one pool."""

    def __init__(self, queues: Sequence[QueuePolicy]) -> None:
        self._bands: tuple[Band[T], ...] = tuple(Band(policy) for policy in queues)

    @property
    def count(self) -> int:
        """Waiters of all priorities."""
        first, second, third = self._bands
        return first.count + second.count + third.count

    def __getitem__(self, priority: Priority) -> Band[T]:
        return self._bands[priority]

    def __iter__(self) -> Iterator[Band[T]]:
        return iter(self._bands)

    def waiting(self) -> tuple[Load, Load, Load]:
        """Load waiting per priority."""
        first, second, third = (band.load for band in self._bands)
        return first, second, third

    def ahead_of(self, priority: Priority) -> Load:
        """Load that goes before a newcomer of this priority."""
        return sum((band.load for band in self._bands[: priority + 1]), NOTHING)

    def blocked(self, priority: Priority) -> bool:
        """Somebody who goes before a newcomer of this priority waits already."""
        return any(band.count for band in self._bands[: priority + 1])

    def refuse(self, arrival: Arrival, *, pressure: bool, expected_wait_s: float | None) -> Outcome | None:
        """Why a newcomer that would have to wait must not; None: it may. `expected_wait_s` None: unknown."""
        band = self._bands[arrival.priority]
        policy = band.policy
        if band.full_for(arrival.body_bytes):
            return Outcome.QUEUE_FULL
        if policy.drop_policy is DropPolicy.FAST_REJECT and (pressure or self._higher_waits(arrival.priority)):
            return Outcome.SHED
        if (expected_wait_s or 0.0) > arrival.patience_s:
            return Outcome.DEADLINE
        if expected_wait_s is None:
            return None
        early = pressure and policy.drop_policy is DropPolicy.EARLY_DROP
        return (
            Outcome.EARLY_DROP if early and expected_wait_s > band.longest_wait_s(arrival.now, pressure=True) else None
        )

    def _higher_waits(self, priority: Priority) -> bool:
        return any(band.count for band in self._bands[:priority])

    def heads(self, most: int) -> list[Waiter[T]]:
        """Who goes next, most important first."""
        found: list[Waiter[T]] = []
        for band in self._bands:
            if band.count and len(found) < most:
                found += band.heads(most - len(found))
        return found

    def overdue(self, now: float, *, pressure: bool) -> tuple[Waiter[T], Outcome] | None:
        """The next waiter whose wait is over, and why; None when all may wait on."""
        for band in self._bands:
            if band.count and (found := band.overdue(now, pressure=pressure)):
                return found
        return None

    def next_due(self, *, pressure: bool) -> float | None:
        """The earliest moment at which `overdue` may have something to say, if nothing else changes."""
        return min(
            (due for band in self._bands if band.count and (due := band.next_due(pressure=pressure)) is not None),
            default=None,
        )
