"""Calls to Redis or Valkey, and the one error for everything it can say. Nothing else knows the client.

Time-outs are ours; a call that is given up drops its connection, so that its answer is never read as another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import hiredis
from redis import exceptions
from redis.asyncio import Redis

from extproc.errors import StateUnavailable
from extproc.state.client import client_of
from extproc.state.nodes import Nodes
from extproc.state.pipe import Pipe
from extproc.state.scripts import Script

_OPENING = 32
"""Connections being opened at a time: of many calls at once most soon find one that others have done with."""

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, "timeout"),
    (exceptions.TimeoutError, "timeout"),
    (exceptions.ClusterError, "cluster"),
    (exceptions.RedisClusterException, "cluster"),
    (exceptions.AuthenticationError, "auth"),
    (exceptions.AuthorizationError, "auth"),
    (exceptions.NoPermissionError, "auth"),
    (exceptions.ConnectionError, "connection"),
    (OSError, "connection"),
)
_WORDS = {
    "LOADING": "loading",
    "READONLY": "readonly",
    "OOM": "oom",
    "CLUSTERDOWN": "cluster",
    "MOVED": "cluster",
    "ASK": "cluster",
    "MASTERDOWN": "readonly",
    "BUSY": "busy",
    "MISCONF": "misconf",
    "NOAUTH": "auth",
    "authenticated": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
    "TRYAGAIN": "cluster",
    "NOSCRIPT": "noscript",
}
_ERRORS = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    hiredis.ReplyError,
    hiredis.ProtocolError,
    OSError,
    TimeoutError,
)
"""What a client, a connection or a server may say."""


Argument = str | bytes | int | float
Heard = Callable[[Any], None]
"""Gets a script's answer, or StateUnavailable."""


class Line(Protocol):
    """What the ledger, the lead and the quotas need of a connection: `Link`."""

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        """See `Link.call`."""

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """See `Link.listen`."""


class Subscription(Protocol):
    """What we use of the client's pub/sub."""

    async def subscribe(self, *channels: str) -> None: ...

    def listen(self) -> Any: ...

    async def aclose(self) -> None: ...


async def run(
    line: Line, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float
) -> Any:
    """`Line.call` for who can wait: the script's answer. Raises StateUnavailable."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def heard(said: Any) -> None:
        if answer.done():
            return
        if isinstance(said, StateUnavailable):
            answer.set_exception(said)
        else:
            answer.set_result(said)

    give_up = line.call(script, keys, arguments, within_s=within_s, heard=heard)
    try:
        return await answer
    finally:
        give_up()


def kind_of(error: Exception) -> str:
    """A short label of what went wrong. The server's own word comes first: a script's error, and one that ended a connection's
    greeting, carries it somewhere in its text."""
    words = (word.strip(":,'-") for word in str(error).split())
    if said := next((_WORDS[word] for word in words if word in _WORDS), None):
        return said
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "error")


class Link:
    """Runs scripts. `url`: `redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://host,host/name`, `redis+cluster://`."""

    def __init__(self, url: str) -> None:
        self._client = client_of(url)
        self.nodes = Nodes(self._client)
        self.opening = asyncio.Semaphore(_OPENING)

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        """Runs a script whose keys are of one slot. `heard` is called once, later, in the callback that reads the answer, with
        it or with StateUnavailable: then the next call starts on a new connection. What is returned gives the call up.

        Where a cluster's nodes must be found first, `within_s` begins after it."""
        call = _Call(self, script, keys, arguments, within_s=within_s, heard=heard)
        return call.give_up

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Calls `heard` with each message, until the connection breaks: then StateUnavailable."""
        client: Redis | None = None
        try:
            client = await self.nodes.any()
            subscription: Subscription = client.pubsub()
            try:
                await subscription.subscribe(channel)
                async for message in subscription.listen():
                    if message["type"] == "message":
                        heard(message["data"].decode())
            finally:
                await subscription.aclose()
        except _ERRORS as error:
            raise unavailable(error) from error
        finally:
            if client is not None and client is not self._client:
                await client.aclose()

    async def close(self) -> None:
        await self.nodes.close()


def unavailable(error: Exception) -> StateUnavailable:
    return StateUnavailable(kind_of(error), f"{type(error).__name__}: {error}")


class _Call:
    """One call, until it is heard or given up."""

    __slots__ = (
        "_arguments",
        "_heard",
        "_keys",
        "_link",
        "_node",
        "_opening",
        "_pipe",
        "_script",
        "_timer",
        "_within_s",
    )

    def __init__(
        self,
        link: Link,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        within_s: float,
        heard: Heard,
    ) -> None:
        self._link = link
        self._script = script
        self._keys = keys
        self._arguments = arguments
        self._within_s = within_s
        self._heard: Heard | None = heard
        self._pipe: Pipe | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._node = link.nodes.of(keys[0])
        if self._node is not None and (pipe := self._node.idle()) is not None:
            self._arm()
            self._send(pipe)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    def give_up(self) -> None:
        """`heard` is not called any more."""
        self._heard = None
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._pipe is not None:
            self._pipe.close()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._within_s, self._fail, TimeoutError("no answer in time")
        )

    async def _open(self) -> None:
        try:
            self._node = node = await self._link.nodes.find(self._keys[0])
            self._arm()
            async with self._link.opening:
                pipe = node.idle() or await node.open()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            self._opening = None
            self._fail(error)
        else:
            self._opening = None
            self._send(pipe)

    def _send(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._write(pipe, "EVALSHA", self._script.sha)

    def _write(self, pipe: Pipe, command: str, script: str) -> None:
        words = (command, script, len(self._keys), *self._keys, *self._arguments)
        pipe.send(*words, heard=partial(self._on_reply, pipe))

    def _on_reply(self, pipe: Pipe, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError) and kind_of(reply) == "noscript":
            self._write(
                pipe, "EVAL", self._script.text
            )  # it ran nothing: the only error after which a call is repeated
        elif isinstance(reply, Exception):
            self._fail(reply)
        else:
            heard, self._pipe = self._heard, None
            self.give_up()
            if self._node is not None:
                self._node.give_back(pipe)
            if heard is not None:
                heard(reply)

    def _fail(self, error: Exception) -> None:
        heard = self._heard
        self.give_up()
        if self._node is not None:
            self._node.forget()
        if heard is not None:
            heard(unavailable(error))
