"""The load generator's HTTP/1.1 client: one request per connection, its answer read as it comes, at least cost.

Why not a library: every token is an event here, and aiohttp's client spends several times as much on each; a generator
that is busy parsing sends late and reads late. Only what a streaming completion needs is understood: chunked bodies,
bodies with a length, bodies that end with the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

_STATUS_LINE = re.compile(r"HTTP/1\.[01] (\d{3})\b")
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


class ChunkDecoder:
    """Transfer-Encoding: chunked, undone. `feed` gives the payload so far decoded; `ended` after the last chunk."""

    __slots__ = ("_buffer", "_left", "ended")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Bytes of the current chunk still to come, its closing CRLF included."""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        parts: list[bytes] = []
        while not self.ended:
            if self._left:
                piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
                payload = max(0, self._left - 2)
                parts.append(piece[:payload])
                self._left -= len(piece)
                if self._left:
                    break
            line_end = self._buffer.find(b"\r\n")
            if line_end < 0:
                break
            size = int(self._buffer[:line_end].partition(b";")[0], 16)
            self._buffer = self._buffer[line_end + 2 :]
            self._left = size + 2
            self.ended = size == 0
        return b"".join(parts)


class Exchange(asyncio.Protocol):
    """One request and its answer. `ended` resolves to None when the answer is whole or the connection is gone."""

    def __init__(self, request: bytes, *, now: Callable[[], float], ended: asyncio.Future[None]) -> None:
        self._request = request
        self._now = now
        self.ended = ended
        self.transport: asyncio.Transport | None = None
        self.sent_at: float | None = None
        self.status = 0
        """0: no answer yet."""
        self.headers: dict[str, str] = {}
        self.events = EventCounter()
        self.whole = False
        """The body came to its declared end."""
        self.trouble = ""
        """What went wrong below the answer's meaning; empty also where the client gave up."""
        self._head = b""
        self._chunks: ChunkDecoder | None = None
        self._left: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)
        self.sent_at = self._now()

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self._head += data
            head, blank, data = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            if not self._read_head(head):
                self._fail()
                return
        try:
            self._read_body(data)
        except ValueError:
            self._fail()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self.ended.done():
            return
        self.whole = bool(self.status) and self._chunks is None and self._left is None
        self.trouble = "" if self.whole else "the connection was cut"
        self._finish()

    def give_up(self) -> None:
        """The client's patience has run out: the connection is dropped, as an impatient client drops it."""
        self._finish()

    def _read_head(self, head: bytes) -> bool:
        lines = head.decode("latin-1").split("\r\n")
        status = _STATUS_LINE.match(lines[0])
        if status is None:
            return False
        self.status = int(status[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers.setdefault(name.strip().lower(), value.strip())
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunks = ChunkDecoder()
        elif length := self.headers.get("content-length"):
            self._left = int(length)
        return True

    def _read_body(self, data: bytes) -> None:
        if self._chunks is not None:
            data = self._chunks.feed(data)
            self.whole = self._chunks.ended
        elif self._left is not None:
            self._left -= len(data)
            self.whole = self._left <= 0
        if data and self.status == 200:
            self.events.feed(data, self._now())
        if self.whole:
            self._finish()

    def _fail(self) -> None:
        self.trouble = "this is not HTTP"
        self._finish()

    def _finish(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)
