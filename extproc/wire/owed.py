"""When Envoy may have stopped waiting for us and let a request pass. Pure arithmetic on explicit times.

With `failure_mode_allow` an answer that comes too late is no answer: Envoy resets the stream and sends the request on.
All we see is a stream that ended, as it does when a client leaves. The time we have owed a reply tells them apart.
"""

from __future__ import annotations

SHARE = 0.8
"""Of `message_timeout`: the rest is what the message needs to reach us, which we cannot see."""
_OVERRIDE_MARGIN_S = 0.1
"""Envoy's timer starts after we asked for it, so the reset cannot come earlier than we can count; the margin is for
clocks that run at different speeds."""


class Owed:
    """The reply that one stream owes at a time. Times are clock seconds."""

    __slots__ = ("_deadline", "_doubtful_until")

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._doubtful_until = float("-inf")

    def start(self, since: float, timeout_s: float) -> None:
        """A message came that Envoy sent no earlier than `since`, and for which it waits `timeout_s`."""
        self._deadline = since + SHARE * timeout_s

    def extend(self, now: float, override_s: float, timeout_s: float) -> None:
        """We asked for `override_s` from now. If that was late, Envoy may have given up before it heard of it."""
        self._doubt(now, timeout_s)
        self._deadline = now + override_s - min(_OVERRIDE_MARGIN_S, (1 - SHARE) * override_s)

    def pay(self, now: float, timeout_s: float) -> None:
        """The reply is sent. If it was late, the stream's end within the next moments means that Envoy did not wait."""
        self._doubt(now, timeout_s)
        self._deadline = None

    def may_have_passed(self, now: float) -> bool:
        """Whether a stream that ends now may belong to a request that Envoy let pass."""
        return now < self._doubtful_until or (self._deadline is not None and now >= self._deadline)

    def _doubt(self, now: float, timeout_s: float) -> None:
        if self._deadline is not None and now >= self._deadline:
            self._doubtful_until = now + max(_DOUBT_S, timeout_s)


_DOUBT_S = 0.25
"""The reset that Envoy sent before our late reply reaches us at once; this leaves room for a busy loop."""
