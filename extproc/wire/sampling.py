"""Time to first token and time per token, read off one streamed answer per engine at a time. Pure, fed with `now`.

While an answer is sampled, Envoy ships each of its chunks to us and holds it until we reply. So there is one such answer
per engine and replica, our reply is the same few bytes each time, and the chunk is looked at after it.
"""

from __future__ import annotations

import re

from extproc.tickets import Ticket
from extproc.wire.events import Event, ResponseBody, ResponseTrailers

LEAST_TOKENS = 8
"""An answer shorter than this says nothing of the time per token: how its events are cut into chunks says more."""
_LONGEST_LINE_BYTES = 1 << 16
"""A body without line ends for longer is no event stream that we can read."""

_WITH_TEXT = re.compile(
    rb'^data:.*?"(?:content|text|reasoning|reasoning_content|thinking|arguments|partial_json|delta)": ?"(?!")',
    re.MULTILINE,
)
"""An event that brings the client something: OpenAI's three APIs and Anthropic's. Not comments, pings, blank lines, the
opening events (a role and no text), usage or `[DONE]`. Inside a JSON string no quote is bare, so text cannot match."""
_ERROR = re.compile(rb'^(?:event: ?error|data: ?\{"(?:type":"error"|error":))', re.MULTILINE)
"""Engines report trouble inside a 200, at once where their own queue is full: such an answer is no measure of theirs."""


class Places:
    """Which engines have an answer sampled now: at most one each. An engine is Envoy's `upstream.address`; where Envoy
    does not say it, all engines are one."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, engine: str) -> bool:
        """False when the engine's place is taken."""
        if engine in self._taken:
            return False
        self._taken.add(engine)
        return True

    def free(self, engine: str) -> None:
        self._taken.discard(engine)


class TokenTimes:
    """Counts the events that carry text and notes when they came. Never decodes JSON: 5 us per token."""

    __slots__ = ("_rest", "first_at", "last_at", "readable", "tokens")

    def __init__(self) -> None:
        self._rest = b""
        self.tokens = 0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.readable = True

    def feed(self, data: bytes, now: float) -> None:
        """The next bytes of the body, cut anywhere."""
        if not self.readable:
            return
        data = self._rest + data
        cut = data.rfind(b"\n") + 1
        lines, self._rest = data[:cut], data[cut:]
        tokens = len(_WITH_TEXT.findall(lines))
        if tokens:
            self.tokens += tokens
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
        if len(self._rest) > _LONGEST_LINE_BYTES or (b"error" in lines and _ERROR.search(lines)):
            self.readable = False

    def ttft_s(self, since: float) -> float | None:
        """None where nothing readable came."""
        return None if self.first_at is None or not self.readable else self.first_at - since

    def tpot_s(self) -> float | None:
        """None where too little came to say."""
        if self.first_at is None or self.last_at is None or self.tokens < LEAST_TOKENS or not self.readable:
            return None
        return (self.last_at - self.first_at) / (self.tokens - 1)


class Sampling:
    """One answer while it is sampled. It counts when it has come to its end; dropped, it frees its place and says
    nothing."""

    __slots__ = ("_engine", "_places", "_ticket", "_times", "over")

    def __init__(self, ticket: Ticket, engine: str, places: Places) -> None:
        """The caller has taken the engine's place."""
        self._ticket = ticket
        self._engine = engine
        self._places = places
        self._times = TokenTimes()
        self.over = False

    def saw(self, event: Event, now: float) -> None:
        """One of the answer's messages."""
        if isinstance(event, ResponseBody):
            self._times.feed(event.data, now)
            if event.end_of_stream:
                self._ended()
        elif isinstance(event, ResponseTrailers):
            self._ended()

    def _ended(self) -> None:
        """The answer is whole."""
        times = self._times
        self._ticket.timed(ttft_s=times.ttft_s(self._ticket.admitted_at), tpot_s=times.tpot_s())
        self.drop()

    def drop(self) -> None:
        """The client left, or the stream broke. After the end it changes nothing."""
        if not self.over:
            self.over = True
            self._places.free(self._engine)
