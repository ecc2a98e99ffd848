"""Bounded label values: a client or a changing fleet must never grow the number of series without end."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"
NONE = "none"


class Values:
    """The values one label may take: those declared, then up to `room` more as they come; after that all are `other`.

    `room` is for values that come from discovery (engine addresses), never for what a client sends.
    """

    def __init__(self, declared: Iterable[str] = (), *, room: int = 0) -> None:
        self._known = {NONE, OTHER, *declared}
        self._room = room

    def declare(self, values: Iterable[str]) -> None:
        self._known.update(values)

    def of(self, value: str) -> str:
        """`value` itself where it is known or still fits; the empty string is `none`."""
        if value in self._known:
            return value
        if not value:
            return NONE
        if self._room > 0:
            self._room -= 1
            self._known.add(value)
            return value
        return OTHER
