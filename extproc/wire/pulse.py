"""Notices that this process did not run for a while: stopped, paused with its machine, or its loop blocked.

Envoy's timers ran on meanwhile. A message read after such a stall may have been sent, and given up, at any time in it.
"""

from __future__ import annotations

from extproc.clock import Clock, Timer

INTERVAL_S = 0.05
"""20 wake-ups a second; a stall is noticed from twice this, well below Envoy's shortest sensible message_timeout."""
SETTLE_S = 0.25
"""After a stall, what piled up in it is read within this time: by grpc's own threads first, then by the loop."""


class LoopPulse:
    """Beats on the loop; a beat that comes late tells how long nothing ran."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self._stalled_from = self._last
        self._settled_at = self._last
        self._timer: Timer | None = None

    def start(self) -> None:
        self._last = self._stalled_from = self._settled_at = self._clock.now()
        self._timer = self._clock.call_at(self._last + INTERVAL_S, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def dates_from(self, now: float) -> float:
        """The earliest moment at which what is read now may have happened; `now` itself while the loop runs well."""
        self._notice(now)
        return self._stalled_from if now < self._settled_at else now

    def _beat(self) -> None:
        now = self._clock.now()
        self._notice(now)
        self._last = now
        self._timer = self._clock.call_at(now + INTERVAL_S, self._beat)

    def _notice(self, now: float) -> None:
        if self._timer is None or now - self._last <= 2 * INTERVAL_S:
            return
        if now >= self._settled_at:  # else one stall follows another: what piled up in the first may still be unread
            self._stalled_from = self._last
        self._settled_at = now + SETTLE_S
        self._last = now
