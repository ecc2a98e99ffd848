"""An observer that remembers."""

from __future__ import annotations

from collections import Counter

from extproc.model import End, Outcome, Priority
from extproc.ports import WireEvent


class Remembering:
    """Implements `ports.Observer`: what was decided, how tickets ended, what happened on the wire."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.by_priority: Counter[tuple[Outcome, Priority | None]] = Counter()
        self.ends: Counter[End] = Counter()
        self.events: Counter[WireEvent] = Counter()
        self.scrapes: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[Priority] = Counter()
        self.waits: list[float] = []

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None:
        self.outcomes[outcome] += 1
        self.by_priority[outcome, priority] += 1
        self.waits.append(waited_s)

    def retried(self, priority: Priority, pool: str) -> None:
        self.retries[priority] += 1

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None:
        self.ends[end] += 1

    def wire(self, event: WireEvent) -> None:
        self.events[event] += 1

    def scraped(self, engine: str, result: str, *, took_s: float) -> None:
        self.scrapes[engine, result] += 1
