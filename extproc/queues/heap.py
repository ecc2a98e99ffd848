"""A priority queue whose entries can be removed by handle in O(log n) amortised.

Removal marks the entry; marked entries are skipped at the top and swept once they are the majority, so that a queue
whose clients leave in droves neither slows down nor grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

_SWEEP_ABOVE = 32


@dataclass(slots=True, eq=False)
class Handle(Generic[T]):
    """One entry's place. `live` is False once it was popped or removed."""

    item: T
    live: bool = True


class Heap(Generic[T]):
    """Smallest key first, equal keys in order of arrival. Keys are seconds or virtual counters."""

    __slots__ = ("_dead", "_entries", "_sequence")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Handle[T]]] = []
        self._sequence = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._entries) - self._dead

    def __iter__(self) -> Iterator[T]:
        """Live items in no particular order."""
        return (handle.item for _, _, handle in self._entries if handle.live)

    def push(self, key: float, item: T) -> Handle[T]:
        handle = Handle(item)
        self._sequence += 1
        heappush(self._entries, (key, self._sequence, handle))
        return handle

    def remove(self, handle: Handle[T]) -> bool:
        """False when it was gone already."""
        if not handle.live:
            return False
        handle.live = False
        self._dead += 1
        if self._dead > _SWEEP_ABOVE and self._dead * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].live]
            heapify(self._entries)
            self._dead = 0
        return True

    def first(self) -> T | None:
        self._skip_dead()
        return self._entries[0][2].item if self._entries else None

    def first_key(self) -> float | None:
        self._skip_dead()
        return self._entries[0][0] if self._entries else None

    def smallest(self, most: int) -> list[T]:
        """The first `most` live items in order, left in place: a best-first walk of the tree, O(most log most)."""
        self._skip_dead()
        found: list[T] = []
        frontier = [(self._entries[0], 0)] if self._entries else []
        while frontier and len(found) < most:
            entry, place = heappop(frontier)
            if entry[2].live:
                found.append(entry[2].item)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(self._entries):
                    heappush(frontier, (self._entries[child], child))
        return found

    def _skip_dead(self) -> None:
        while self._entries and not self._entries[0][2].live:
            heappop(self._entries)
            self._dead -= 1
