"""An observer that counts."""

from __future__ import annotations

from collections import Counter

from extproc.model import End, Outcome, Priority
from extproc.ports import WireEvent


class CountingObserver:
    """Implements `ports.Observer`."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.ends: Counter[End] = Counter()
        self.events: Counter[WireEvent] = Counter()

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None:
        del priority, pool, waited_s
        self.outcomes[outcome] += 1

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None:
        del priority, pool, held_s
        self.ends[end] += 1

    def wire(self, event: WireEvent) -> None:
        self.events[event] += 1

    def scraped(self, engine: str, result: str, *, took_s: float) -> None:
        del engine, result, took_s
