"""Calls to Redis or Valkey, and the one error for everything it can say. Nothing else knows the client.

Time-outs are ours; a call that is given up drops its connection, so that its answer is never read as another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis

from extproc.errors import StateUnavailable
from extproc.state.call import Argument, Call, Heard
from extproc.state.client import CONNECT_S, client_of
from extproc.state.nodes import Nodes
from extproc.state.scripts import Script
from extproc.state.trouble import ERRORS, unavailable


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


class Link:
    """Runs scripts. `url`: `redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://host,host/name`, `redis+cluster://`."""

    def __init__(self, url: str) -> None:
        self._client = client_of(url)
        self._nodes = Nodes(self._client)

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        """Runs a script whose keys are of one slot. `heard` is called once, later, in the callback that reads the answer, with
        it or with StateUnavailable: then the next call starts on a new connection. What is returned gives the call up.

        Where a cluster's nodes must be found first, `within_s` begins after it."""
        call = Call(self._nodes, script, keys, arguments, within_s=within_s, heard=heard)
        return call.give_up

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Calls `heard` with each message, until the connection breaks: then StateUnavailable."""
        client: Redis | None = None
        try:
            client = await self._nodes.any()
            subscription: Subscription = client.pubsub()
            try:
                async with asyncio.timeout(CONNECT_S) as until_subscribed:
                    await subscription.subscribe(channel)
                    async for message in subscription.listen():
                        until_subscribed.reschedule(None)  # from here on silence means that nobody is woken
                        if message["type"] == "message":
                            heard(message["data"].decode())
            finally:
                await subscription.aclose()
        except ERRORS as error:
            raise unavailable(error) from error
        finally:
            if client is not None and client is not self._client:
                await client.aclose()

    async def close(self) -> None:
        await self._nodes.close()
