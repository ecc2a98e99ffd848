"""One connection to the store, on which a reply is passed on in the very callback that reads it, and a call is written at once.

Over streams a call and its reply wait for the event loop once more each, behind whatever a burst has put there. The client
opens the connection, with its TLS, login and protocol, and has no part in it afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import hiredis
from redis.asyncio.connection import AbstractConnection

Heard = Callable[[Any], None]
"""Gets a reply, or an exception: `hiredis.ReplyError` for one that is an error, else why there is none."""


class Pipe(asyncio.Protocol):
    """One call at a time. Made by `opened`."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._pack = connection.pack_command
        self._replies = hiredis.Reader()
        self._heard: Heard | None = None
        # The one thing of the client's that is not public. The stream is kept: where nobody holds it, it closes the transport.
        stream, connection._writer = connection._writer, None
        if stream is None:
            raise ConnectionError("the store closed the connection")
        self._stream = stream
        self._transport = stream.transport
        self._transport.set_protocol(self)

    @classmethod
    async def opened(cls, connection: AbstractConnection) -> Self:
        """Raises what the client raises where it cannot connect."""
        await connection.connect()  # type: ignore[no-untyped-call]
        return cls(connection)

    @property
    def open(self) -> bool:
        """False as soon as its end has been read, or it was closed here."""
        return not self._transport.is_closing()

    def send(self, *words: str | bytes | float, heard: Heard) -> None:
        """`heard` is called once, later, unless the pipe is closed before."""
        self._heard = heard
        self._transport.write(b"".join(self._pack(*words)))

    def close(self) -> None:
        """At once: what would have been heard is not."""
        self._heard = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        replies = []
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not False:
                if not isinstance(reply, hiredis.PushNotification):  # of the server's own accord, under RESP3
                    replies.append(reply)
        except hiredis.ProtocolError as error:
            self._break(error)
        else:
            if replies:
                self._pass_on(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(exc or ConnectionError("the store closed the connection"))

    def _break(self, error: Exception) -> None:
        heard = self._heard
        self.close()
        if heard is not None:
            heard(error)

    def _pass_on(self, replies: list[object]) -> None:
        """Who hears one may call again here at once: a reply too many would be taken for that call's."""
        if len(replies) > 1 or self._heard is None:
            self._break(ConnectionError("a reply that nobody waits for"))
        else:
            heard, self._heard = self._heard, None
            heard(replies[0])
