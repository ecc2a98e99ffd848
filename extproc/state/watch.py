"""What the shared state tells of itself while it works."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Where counts go; must be cheap and never raise."""

    def state_called(self, result: str) -> None:
        """One call: `ok`, `late`, or the kind of a StateUnavailable."""

    def state_answered(self, took_s: float) -> None:
        """One ask has its verdict, from the store or from this replica alone."""
