"""The waiters of one pool: a band per priority, strict between bands, fair between tenants within one, and the drop
policies.

Pure: takes `now` and `pressure` (the pool is at or above its high watermark), returns who is to be refused and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from extproc.config import DropPolicy, QueuePolicy
from extproc.model import DEFAULT_TENANT, NOTHING, Load, Outcome, PoolState, Priority, Tenant, least
from extproc.queues.codel import Codel
from extproc.queues.fair import FairOrder
from extproc.queues.ordered import Handle, Ordered
from extproc.queues.shares import Shares
from extproc.submission import Submission

T = TypeVar("T")

MOST_PASSES = 8
"""How often smaller requests may go before one that does not fit; then they wait until it does."""

TARGET_SHARE = 1 / 15
"""CoDel's target as a share of the queue's time-out, where `targetWait` does not say, and its interval: 1 s for P1's 15 s."""


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
    tenant: Tenant = DEFAULT_TENANT
    prompt_tokens: int = 0
    judged: bool = False
    """The drop policy has let it wait. Until then it only asks for a place, and the policy's pressure rules pass it by. Does
    not change while it is in a band."""
    passed: int = 0
    """How often one behind it has gone before it because it did not fit."""
    order: Handle[Waiter[T]] | None = None
    age: Handle[Waiter[T]] | None = None
    due: Handle[Waiter[T]] | None = None


class Band(Generic[T]):
    """One priority's queue."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.count = 0
        """Waiters. An attribute, because every request reads it several times."""
        self.standing = 0
        """Waiters that were let wait; the others only wait for the ledger's word, which may be that they go at once."""
        self.load = NOTHING
        self.body_bytes = 0
        self.shares = Shares()
        """What each tenant of this priority holds."""
        self._order: FairOrder[Waiter[T]] = FairOrder()
        self._ages: Ordered[Waiter[T]] = Ordered()
        self._deadlines: Ordered[Waiter[T]] = Ordered()
        self.use(policy)

    def use(self, policy: QueuePolicy) -> None:
        """Whoever waits keeps the deadline it was given; size, bytes and drop policy are the new ones from now on.

        Nobody is dropped because a queue has become smaller. CoDel starts anew: it looks at the head, which is still there.
        """
        self.policy = policy
        target_s = policy.timeout_s * TARGET_SHARE if policy.target_wait_s is None else policy.target_wait_s
        self.codel = Codel(target_s=target_s, interval_s=target_s)

    def push(self, waiter: Waiter[T]) -> None:
        waiter.order = self._order.push(waiter)
        waiter.age = self._ages.push(waiter.arrived, waiter)
        waiter.due = self._deadlines.push(waiter.deadline, waiter)
        self.count += 1
        self.standing += waiter.judged
        self.load += waiter.load
        self.body_bytes += waiter.body_bytes

    def remove(self, waiter: Waiter[T], *, served: bool = False) -> bool:
        """False when it was gone already. `served`: it is admitted, and its tenant is charged for it."""
        if waiter.order is None or waiter.age is None or waiter.due is None:
            return False
        if not self._order.remove(waiter.order, served=served):
            return False
        self._ages.remove(waiter.age)
        self._deadlines.remove(waiter.due)
        self.count -= 1
        self.standing -= waiter.judged
        self.load = self.load - waiter.load if self.count else NOTHING
        self.body_bytes -= waiter.body_bytes
        return True

    def pass_by(self, tenant: Tenant, load: Load) -> None:
        """A request is admitted that stood in no line, since nobody did: its tenant is charged for it all the same."""
        self._order.charge(tenant, load)

    def heads(self) -> Iterator[Waiter[T]]:
        """Who goes next, in order. Not across changes."""
        return iter(self._order)

    def oldest(self) -> Waiter[T] | None:
        """Who has waited longest: not always who goes next."""
        return self._ages.first()

    def ahead_of(self, tenant: Tenant, mean: Load) -> Load:
        """Load of this band that goes before a newcomer of the tenant: at most what fairness gives the others meanwhile.

        `mean`: what the newcomer itself takes, about. The tenant's own line and as much of the others' as their weights
        are worth, never more than all there is.
        """
        own = self._order.load_of(tenant.name)
        others = self._order.weights - (tenant.weight if own is not None else 0.0)
        if others <= 0:
            return self.load
        mine = mean if own is None else own + mean
        fair = mine.scaled(others / tenant.weight) + (own or NOTHING)
        return least(self.load, fair)

    def yielding_to(self, tenant: Tenant) -> Waiter[T] | None:
        """Who makes room for a newcomer when the queue is full: the youngest of the tenant with the longest line for its
        weight, if that line is longer than the newcomer's would be; None: nobody."""
        longest = self._order.longest()
        own = (self._order.count_of(tenant.name) + 1) / tenant.weight
        if longest is None or longest.tenant.name == tenant.name or longest.count / longest.tenant.weight <= own:
            return None
        return max(longest.items, key=lambda waiter: waiter.arrived)

    def full_for(self, body_bytes: int) -> bool:
        return self.count >= self.policy.max_queue_size or self.body_bytes + body_bytes > self.policy.max_queue_bytes

    def overdue(self, now: float, *, pressure: bool) -> tuple[Waiter[T], Outcome] | float:
        """The next waiter whose wait is over, and why; or when there may be one, if nothing else changes, inf: never."""
        oldest, first = self.oldest(), self._deadlines.first()
        self.codel.observe(now, oldest.arrived if oldest else None)
        if oldest is None or first is None:
            return math.inf
        until = self._pressed_until(oldest) if pressure else math.inf
        if now >= until:
            return oldest, Outcome.EARLY_DROP
        return (first, first.late) if now >= first.deadline else min(until, first.deadline)

    def longest_wait_s(self, now: float, *, pressure: bool) -> float:
        """How long a newcomer may wait by the time-out and the drop policy."""
        if not pressure or self.policy.drop_policy is not DropPolicy.EARLY_DROP:
            return self.policy.timeout_s
        pressed = min(self.policy.timeout_s, self.policy.max_wait_under_pressure_s)
        return min(pressed, 2 * self.codel.target_s) if self.codel.standing(now) else pressed

    def _pressed_until(self, oldest: Waiter[T]) -> float:
        """Until when the oldest may stay while there is pressure; inf: as long as without."""
        if not oldest.judged:
            return math.inf
        match self.policy.drop_policy:
            case DropPolicy.TAIL:
                return math.inf
            case DropPolicy.EARLY_DROP:
                return min(self.codel.drop_at(oldest.arrived), oldest.arrived + self.policy.max_wait_under_pressure_s)
            case DropPolicy.FAST_REJECT:
                return oldest.arrived


class Bands(Generic[T]):
    """All queues of one pool."""

    def __init__(self, queues: Sequence[QueuePolicy]) -> None:
        self._bands: tuple[Band[T], ...] = tuple(Band(policy) for policy in queues)

    def use(self, queues: Sequence[QueuePolicy]) -> None:
        """New settings for the bands, in the same order; see `Band.use`."""
        for band, policy in zip(self._bands, queues, strict=True):
            band.use(policy)

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

    def ahead_of(self, priority: Priority, tenant: Tenant, mean: Load) -> Load:
        """Load that goes before a newcomer of this priority and tenant; `mean`: about what it takes itself."""
        ahead, own = NOTHING, self._bands[priority]
        for band in self._bands[:priority]:
            ahead += band.load
        return ahead + own.ahead_of(tenant, mean) if own.count else ahead

    def blocked(self, priority: Priority) -> bool:
        """Somebody who goes before a newcomer of this priority waits already, and not for the ledger's word only."""
        first, second, third = self._bands
        return any((first.standing, second.standing, third.standing)[: priority + 1])

    def refuse(
        self,
        submission: Submission,
        *,
        now: float,
        pressure: bool,
        expected_wait_s: float | None,
        useful_wait_s: float,
    ) -> Outcome | None:
        """Why a newcomer that would have to wait must not; None: it may.

        `expected_wait_s` None: unknown; `useful_wait_s`: the longest that still leaves time for an answer.
        """
        band = self._bands[submission.priority]
        policy = band.policy
        if policy.max_queue_size == 0:
            return Outcome.SHED
        if band.full_for(submission.body_bytes) and not band.yielding_to(submission.tenant):
            return Outcome.QUEUE_FULL
        if policy.drop_policy is DropPolicy.FAST_REJECT and (pressure or self._higher_waits(submission.priority)):
            return Outcome.SHED
        if (expected_wait_s or 0.0) > useful_wait_s:
            return Outcome.DEADLINE
        if expected_wait_s is None:
            return None
        early = pressure and policy.drop_policy is DropPolicy.EARLY_DROP
        return Outcome.EARLY_DROP if early and expected_wait_s > band.longest_wait_s(now, pressure=True) else None

    def _higher_waits(self, priority: Priority) -> bool:
        return any(band.standing for band in self._bands[:priority])

    def heads(self) -> Iterator[Waiter[T]]:
        """Who goes next, most important first. Not across changes."""
        return chain.from_iterable(band.heads() for band in self._bands if band.count)

    def overdue(self, now: float, *, pressure: bool) -> tuple[Waiter[T], Outcome] | float:
        """As `Band.overdue`, of all: the most important first."""
        due = math.inf
        for band in self._bands:
            if band.count:
                found = band.overdue(now, pressure=pressure)
                if isinstance(found, tuple):
                    return found
                due = min(due, found)
        return due


def pass_one(refused: Sequence[Waiter[T]], state: PoolState, total: Load) -> Waiter[T] | None:
    """Where the first in line is too large for what is free: the next of its priority that fits, so many times.

    `refused`: who was asked for and may not go now, in order. Counts the pass.
    """
    if not refused or not refused[0].judged or refused[0].passed >= MOST_PASSES:
        return None
    head = refused[0]
    left = state.limits[head.priority] - total
    if head.load.tokens <= left.tokens or left.slots < 1:
        return None
    passer = next((w for w in refused[1:] if w.priority is head.priority and w.judged and w.load.fits(left)), None)
    head.passed += passer is not None
    return passer
