"""Counts the tokens of a streamed answer at least cost: a generator that is busy parsing sends late and reads late."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:content|text)": ?"(?!")')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_FINISH_REASON = re.compile(rb'"finish_reason": ?"(\w+)"')
_ERROR = re.compile(rb'^data: ?\{"error":', re.MULTILINE)
_NATURAL_ENDS = ("stop", "length")


class EventCounter:
    """Counts the text events of a stream of server-sent events and notes when they came. Never decodes JSON."""

    __slots__ = ("_rest", "done", "error", "events", "finish_reason", "first_at", "last_at", "usage_tokens")

    def __init__(self) -> None:
        self._rest = b""
        self.events = 0
        """Those that carried text: one token each, or more where the engine had to catch up."""
        self.usage_tokens: int | None = None
        """What the engine says it generated; None until it says so."""
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.finish_reason = ""
        self.done = False
        self.error = False

    def feed(self, data: bytes, now: float) -> None:
        data = self._rest + data if self._rest else data
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            self._rest = data
            return
        self._rest = data[cut:]
        events = data[:cut]
        carried = len(_TOKEN.findall(events))
        if carried:
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
            self.events += carried
        if finish := _FINISH_REASON.search(events):
            self.finish_reason = finish[1].decode()
        if finish or events.count(b"\n\n") != carried:
            self._note_rare(events)

    def _note_rare(self, events: bytes) -> None:
        """Events of one token each are the hot case; whatever else a stream may say is looked for here."""
        if usage := _COMPLETION_TOKENS.search(events):
            self.usage_tokens = int(usage[1])
        self.done = self.done or b"data: [DONE]" in events
        self.error = self.error or _ERROR.search(events) is not None

    @property
    def tokens(self) -> int:
        """As the engine counted them; before it did, what is known to have come."""
        return self.events if self.usage_tokens is None else self.usage_tokens

    @property
    def trouble(self) -> str:
        """Why an ended stream is not a whole answer; empty where it is."""
        if self.error:
            return "the engine reported an error inside the stream"
        if not self.done:
            return "the stream was cut"
        if self.finish_reason not in _NATURAL_ENDS:
            return f"the engine stopped early ({self.finish_reason or 'no reason given'})"
        if self.usage_tokens is None or not 0 < self.events <= self.usage_tokens:
            return f"{self.events} events with text for {self.usage_tokens} tokens"
        return ""
