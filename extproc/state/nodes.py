"""Where a call goes: the server that has its key, and the connections to it that wait for a call.

A node that fails is forgotten alone: what is known of a cluster's others holds until they fail too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from redis import exceptions
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import AbstractConnection

from extproc.state.client import client_of_node
from extproc.state.pipe import Pipe

FIND_S = 5.0
"""For asking a cluster which node has what."""
_OPENING = 32
"""Connections being opened at a time: of many calls at once most soon find one that others have done with."""


class Node:
    """A server, until it is forgotten."""

    __slots__ = ("_connection", "_idle", "trusted")

    def __init__(self, connection: Callable[[], AbstractConnection]) -> None:
        self.trusted = True
        self._connection = connection
        self._idle: list[Pipe] = []

    def idle(self) -> Pipe | None:
        """A connection, the caller's from here on."""
        while self._idle:
            if (pipe := self._idle.pop()).open:
                return pipe
        return None

    async def open(self) -> Pipe:
        """Likewise, a new one."""
        return await Pipe.opened(self._connection())

    def give_back(self, pipe: Pipe) -> None:
        if self.trusted:
            self._idle.append(pipe)
        else:
            pipe.close()

    def forget(self) -> None:
        """One that lost its role answers READONLY on the same connection for ever, one that lost a slot MOVED."""
        self.trusted = False
        while self._idle:
            self._idle.pop().close()


class Nodes:
    """The one server, or a cluster's."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self._client = client
        self._nodes: dict[str, Node] = {}
        """By name. Those with no key of ours are not among them."""
        self.opening = asyncio.Semaphore(_OPENING)

    def of(self, key: str) -> Node | None:
        """Who has the key; None: it must be found."""
        node = self._nodes.get(self._name(key) or "")
        return node if node is not None and node.trusted else None

    async def find(self, key: str) -> Node:
        """Raises what the client raises, TimeoutError after `FIND_S`."""
        name = self._name(key)
        known = self._nodes.get(name or "")
        if name is None or (known is not None and not known.trusted):
            await self._ask()
        if (node := self.of(key)) is None:
            node = self._nodes[self._name(key) or ""] = Node(self._connection_to(key))
        return node

    async def any(self) -> Redis:
        """A client to whom one subscribes: in a cluster a message reaches all nodes. The one server's is not the caller's."""
        client = self._client
        if not isinstance(client, RedisCluster):
            return client
        if not client.get_nodes():
            await self._ask()
        return client_of_node(client.get_random_node())

    async def close(self) -> None:
        for node in self._nodes.values():
            node.forget()
        client = self._client
        with suppress(exceptions.RedisError, OSError):
            if isinstance(client, RedisCluster):
                await client.nodes_manager.aclose()
                await client.nodes_manager.aclose("startup_nodes")
                return
            await client.aclose()
            manager = getattr(client.connection_pool, "sentinel_manager", None)
            for sentinel in manager.sentinels if manager is not None else ():
                await sentinel.aclose()

    async def _ask(self) -> None:
        """Any of a cluster's nodes tells of all. The client's own `initialize` wants the commands of one of them too, and so
        fails for as long as that one is down."""
        if isinstance(self._client, RedisCluster):
            async with asyncio.timeout(FIND_S):
                await self._client.nodes_manager.initialize()

    def _name(self, key: str) -> str | None:
        """Of who has the key, as last heard; None: nobody has told. A server that is no cluster's has none."""
        if not isinstance(self._client, RedisCluster):
            return ""
        with suppress(exceptions.SlotNotCoveredError):
            if (node := self._client.get_node_from_key(key)) is not None:
                return str(node.name)
        return None

    def _connection_to(self, key: str) -> Callable[[], AbstractConnection]:
        if not isinstance(self._client, RedisCluster):
            return self._client.connection_pool.make_connection
        if (node := self._client.get_node_from_key(key)) is None:
            raise exceptions.ClusterError("no node has this key")
        return partial(node.connection_class, **node.connection_kwargs)
