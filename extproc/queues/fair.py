"""Fair order between tenants: whoever has been served least, by tokens over weight, goes next. Pure.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant's counter
grows by the tokens of each request it gets through, divided by its weight; the smallest counter is next. A tenant that
comes back from idling is lifted to the counter of whoever was served last (the virtual time of start-time fair queueing,
Goyal et al., SIGCOMM 1996), so that nobody saves up service.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from extproc.model import NOTHING, Load, Tenant
from extproc.queues.ordered import Handle, Ordered

_REMEMBERED = 1024
"""Tenants that are remembered while they do not wait; beyond it the longest absent is forgotten first."""


class Waits(Protocol):
    """What the order must know of an item."""

    @property
    def tenant(self) -> Tenant: ...

    @property
    def load(self) -> Load: ...

    @property
    def arrived(self) -> float: ...


W = TypeVar("W", bound=Waits)


class Line(Generic[W]):
    """One tenant's waiters, first come first, their load, and the tenant's counter."""

    __slots__ = ("counter", "items", "load", "place", "tenant")

    def __init__(self, tenant: Tenant, counter: float) -> None:
        self.tenant = tenant
        self.counter = counter
        self.items: Ordered[W] = Ordered()
        self.load = NOTHING
        self.place: Handle[Line[W]] | None = None

    @property
    def count(self) -> int:
        return len(self.items)


class FairOrder(Generic[W]):
    """The waiters of one priority. What is remembered is bounded, whatever tenants are sent."""

    __slots__ = ("_lines", "_order", "_past", "_served", "weights")

    def __init__(self) -> None:
        self._lines: dict[str, Line[W]] = {}
        self._order: Ordered[Line[W]] = Ordered()
        self._past: dict[str, float] = {}
        """Counters of tenants that do not wait now but are ahead of the virtual time: their next request starts there."""
        self._served = 0.0
        """The virtual time: the counter, before the charge, of whoever was served last. Never falls."""
        self.weights = 0.0
        """Sum over the tenants that have waiters."""

    def push(self, item: W) -> Handle[W]:
        name = item.tenant.name
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(item.tenant, max(self._served, self._past.pop(name, 0.0)))
            line.place = self._order.push(line.counter, line)
            self.weights += item.tenant.weight
        elif line.tenant.weight != item.tenant.weight:  # another policy came meanwhile
            self.weights += item.tenant.weight - line.tenant.weight
            line.tenant = item.tenant
        line.load += item.load
        return line.items.push(item.arrived, item)

    def remove(self, handle: Handle[W], *, served: bool) -> bool:
        """False when it was gone already. `served`: it goes to the engines, and its tenant is charged for it."""
        item = handle.item
        line = self._lines.get(item.tenant.name)
        if line is None or not line.items.remove(handle):
            return False
        line.load = line.load - item.load
        if served:
            self._served = max(self._served, line.counter)
            line.counter += _price(item.load, item.tenant)
        if not line.count:
            self._forget(line)
        elif served:
            self._place_again(line)
        return True

    def charge(self, tenant: Tenant, load: Load) -> None:
        """As a push and a served removal of a request of a tenant that has no waiters."""
        self._served = max(self._served, self._past.pop(tenant.name, 0.0))
        self._remember(tenant.name, self._served + _price(load, tenant))

    def first(self) -> W | None:
        line = self._order.first()
        return None if line is None else line.items.first()

    def __iter__(self) -> Iterator[W]:
        """Who goes next, if nothing else changes, in order: costs what is taken of it. Not across changes."""
        lines = iter(self._order)
        newcomer = next(lines, None)
        turns: list[tuple[float, int, Iterator[W]]] = []
        """Of whose line some have gone: the counter after that, how many had gone then, the rest."""
        gone = 0
        while newcomer is not None or turns:
            if newcomer is not None and not (turns and turns[0][0] < newcomer.counter):
                counter, items = newcomer.counter, iter(newcomer.items)
                newcomer = next(lines, None)
            else:  # as in `_place_again`: behind those who have the same counter
                counter, _, items = heappop(turns)
            if (item := next(items, None)) is not None:
                yield item
                gone += 1
                heappush(turns, (counter + _price(item.load, item.tenant), gone, items))

    def load_of(self, name: str) -> Load | None:
        """Load of a tenant's waiters; None: it has none."""
        line = self._lines.get(name)
        return None if line is None else line.load

    def count_of(self, name: str) -> int:
        """A tenant's waiters."""
        line = self._lines.get(name)
        return 0 if line is None else line.count

    def longest(self) -> Line[W] | None:
        """The line with the most waiters for its tenant's weight. Walks all lines: for a full queue only."""
        return max(self._lines.values(), key=lambda line: line.count / line.tenant.weight, default=None)

    def _place_again(self, line: Line[W]) -> None:
        if line.place is not None:
            self._order.remove(line.place)
        line.place = self._order.push(line.counter, line)

    def _forget(self, line: Line[W]) -> None:
        if line.place is not None:
            self._order.remove(line.place)
        del self._lines[line.tenant.name]
        self.weights = self.weights - line.tenant.weight if self._lines else 0.0
        self._remember(line.tenant.name, line.counter)

    def _remember(self, name: str, counter: float) -> None:
        if counter > self._served:
            self._past[name] = counter
        if len(self._past) > _REMEMBERED:
            self._past = {name: counter for name, counter in self._past.items() if counter > self._served}
        while len(self._past) > _REMEMBERED:
            del self._past[next(iter(self._past))]


def _price(load: Load, tenant: Tenant) -> float:
    return max(1.0, load.tokens) / tenant.weight
