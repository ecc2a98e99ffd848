"""A sorted list whose entries can be removed by handle.

For a queue that is asked for its first few at every decision a sorted list beats a heap: they are there to be read. A push or
a removal is a binary search and a move of memory, 8 bytes an entry: a few microseconds where ten thousand wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_item = itemgetter(2)


class Handle(NamedTuple, Generic[T]):
    """One entry. Within a list sequence numbers differ, so items are never compared."""

    key: float
    sequence: int
    item: T


class Ordered(Generic[T]):
    """Smallest key first, equal keys in order of arrival. Keys are seconds or virtual counters."""

    __slots__ = ("_entries", "_sequence")

    def __init__(self) -> None:
        self._entries: list[Handle[T]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        """In order. Not across changes."""
        return map(_item, self._entries)

    def push(self, key: float, item: T) -> Handle[T]:
        self._sequence += 1
        handle = Handle(key, self._sequence, item)
        insort(self._entries, handle)
        return handle

    def remove(self, handle: Handle[T]) -> bool:
        """False when it was gone already, or is another list's."""
        place = bisect_left(self._entries, handle[:2])
        if place == len(self._entries) or self._entries[place] is not handle:
            return False
        del self._entries[place]
        return True

    def first(self) -> T | None:
        return self._entries[0].item if self._entries else None
