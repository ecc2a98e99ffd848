"""Controlled delay at the head of a queue (CoDel): tells a burst, which passes, from a standing queue, which does not.

After Nichols and Jacobson, "Controlling Queue Delay" (2012), in the form server queues use (folly's `Codel`): while the
wait at the head has been above `target_s` for a whole `interval_s`, the queue is standing, and whoever has waited
longer than twice the target is dropped. Waits of the admitted then settle near the target instead of near the time-out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Codel:
    """One queue's state. Times are clock seconds."""

    target_s: float
    interval_s: float
    _above_since: float | None = None

    def observe(self, now: float, head_arrived: float | None) -> None:
        """Called whenever the head changes or its time has come; None: the queue is empty."""
        if head_arrived is None or now - head_arrived < self.target_s:
            self._above_since = None
        elif self._above_since is None:
            self._above_since = head_arrived + self.target_s

    def drop_at(self, head_arrived: float) -> float:
        """The moment at which this head is to be dropped, if it is still the head and nothing changes."""
        above_since = head_arrived + self.target_s if self._above_since is None else self._above_since
        return max(above_since + self.interval_s, head_arrived + 2 * self.target_s)

    def standing(self, now: float) -> bool:
        return self._above_since is not None and now - self._above_since >= self.interval_s
