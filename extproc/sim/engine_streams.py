"""From tokens to bytes on a connection: the receivers behind the fake engine's two kinds of reply.

A stream writes straight to the connection's transport, past the web framework: bytes made once per stream, one `write`
per token. A reader that is slow holds nobody up: its tokens are held as a number, and go out as one larger event when
it has caught up.
"""

from __future__ import annotations

import asyncio

from extproc.sim.engine_stats import Finish
from extproc.sim.openai_reply import WORDS, Answer, ReplyForm, chunk, words

HOLD_ABOVE_BYTES = 65_536
"""Unsent bytes in a connection's buffer above which a stream's further tokens are held back."""


class WholeAnswer:
    """A receiver that only counts; `done` resolves to the number of tokens and the finish reason."""

    __slots__ = ("_ending", "_index", "_tokens", "done")

    def __init__(self, index: int, ending: Finish, *, done: asyncio.Future[Answer]) -> None:
        self._index = index
        self._ending = ending
        self._tokens = 0
        self.done = done

    def token(self) -> None:
        self._tokens += 1

    def last(self) -> None:
        self._tokens += 1
        self._end(self._ending)

    def cut(self) -> None:
        self._end(Finish.ABORT)

    def _end(self, reason: Finish) -> None:
        if not self.done.done():
            self.done.set_result(Answer(self._index, self._tokens, reason))


class SseStream:
    """One streamed reply: its connection, and what its answers share. `done` resolves when all is written."""

    __slots__ = ("_chunked", "_left", "_prompt_tokens", "answers", "done", "reply", "transport")

    def __init__(
        self, reply: ReplyForm, endings: list[Finish], *, prompt_tokens: int, done: asyncio.Future[None]
    ) -> None:
        self.reply = reply
        self.done = done
        self.transport: asyncio.WriteTransport | None = None
        """Where to write; None until the response's headers are out."""
        self.answers = [SseAnswer(self, index, ending) for index, ending in enumerate(endings)]
        self._left = len(self.answers)
        self._prompt_tokens = prompt_tokens
        self._chunked = True

    def begin(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """The headers are out. `chunked`: whether HTTP/1.1's chunked coding is in force."""
        self._chunked = chunked
        self.transport = transport
        for answer in self.answers:
            answer.flush()

    def coded(self, data: bytes) -> bytes:
        return chunk(data) if self._chunked else data

    def answer_ended(self, transport: asyncio.WriteTransport) -> None:
        self._left -= 1
        if self._left:
            return
        tokens = sum(answer.made for answer in self.answers)
        transport.write(self.coded(self.reply.closing(self._prompt_tokens, tokens)))
        if not self.done.done():
            self.done.set_result(None)


class SseAnswer:
    """The receiver of one answer of a stream. `made`: tokens the engine gave; `_sent`: tokens written."""

    __slots__ = ("_ending", "_index", "_opened", "_reason", "_ring", "_sent", "_stream", "made")

    def __init__(self, stream: SseStream, index: int, ending: Finish) -> None:
        self.made = 0
        self._stream = stream
        self._index = index
        self._ending = ending
        self._reason: Finish | None = None
        self._sent = 0
        self._opened = False
        self._ring: list[bytes] = []

    def token(self) -> None:
        self.made = made = self.made + 1
        transport = self._stream.transport
        if transport is None or transport.get_write_buffer_size() > HOLD_ABOVE_BYTES:
            return
        if self._opened and self._sent == made - 1:
            transport.write(self._ring[self._sent % len(WORDS)])
            self._sent = made
        else:
            self.flush()

    def last(self) -> None:
        self.made += 1
        self._reason = self._ending
        self.flush()

    def cut(self) -> None:
        self._reason = Finish.ABORT
        self.flush()

    def flush(self) -> None:
        """Writes what is made and not sent as one event, after the opening and with the end if it has come to that."""
        transport, stream = self._stream.transport, self._stream
        if transport is None or not (self.made > self._sent or self._reason):
            return
        data = b""
        if not self._opened:
            self._opened = True
            data = stream.reply.opening(self._index)
            data = stream.coded(data) if data else b""
            self._ring = [stream.coded(stream.reply.event(self._index, word)) for word in WORDS]
        text = words(self._sent, self.made - self._sent)
        data += stream.coded(stream.reply.event(self._index, text, self._reason))
        self._sent = self.made
        transport.write(data)
        if self._reason is not None:
            stream.answer_ended(transport)
