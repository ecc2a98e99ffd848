"""The connection to Redis or Valkey, and the one error for everything it can say. Nothing else knows the client.

The client's own retries are off: a call that ran but whose answer was lost must not run twice without our knowing. Its
time-outs are ours; a call that is given up drops its connection, so that its answer is never read as another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from redis import exceptions
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from extproc.errors import ExtprocError, StateUnavailable
from extproc.state.scripts import Script

CONNECT_S = 1.0
FIND_S = 5.0
"""For asking a cluster which node has what; a call's own time begins after it."""
_SENTINEL_PORT = 26379

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, "timeout"),
    (exceptions.TimeoutError, "timeout"),
    (exceptions.BusyLoadingError, "loading"),
    (exceptions.ReadOnlyError, "readonly"),
    (exceptions.OutOfMemoryError, "oom"),
    (exceptions.ClusterError, "cluster"),
    (exceptions.RedisClusterException, "cluster"),
    (exceptions.MovedError, "cluster"),
    (exceptions.NoScriptError, "noscript"),
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
    "MASTERDOWN": "readonly",
    "BUSY": "busy",
    "MISCONF": "misconf",
    "NOAUTH": "auth",
    "authenticated": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
    "TRYAGAIN": "cluster",
}


Argument = str | bytes | int | float


class BadUrl(ExtprocError):
    """`--redis-url` is not one; the message says what was expected, and never repeats a password."""


class Line(Protocol):
    """What the ledger and the lead need of a connection: `Link`."""

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float) -> Any:
        """See `Link.run`."""

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """See `Link.listen`."""


class Subscription(Protocol):
    """What we use of the client's pub/sub."""

    async def subscribe(self, *channels: str) -> None: ...

    def listen(self) -> Any: ...

    async def aclose(self) -> None: ...


def kind_of(error: Exception) -> str:
    """A short label of what went wrong. The server's own word comes first: a script's error, and one that ended a connection's
    greeting, carries it somewhere in its text."""
    words = (word.strip(":,'") for word in str(error).split())
    if said := next((_WORDS[word] for word in words if word in _WORDS), None):
        return said
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "error")


class Link:
    """Runs scripts. `url`: `redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://host,host/name`, `redis+cluster://`."""

    def __init__(self, url: str) -> None:
        self._client = client_of(url)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float) -> Any:
        """The script's answer. Raises StateUnavailable, and then the next call starts on a new connection."""
        try:
            await self._find_nodes()
            async with asyncio.timeout(within_s):
                try:
                    return await self._client.evalsha(script.sha, len(keys), *keys, *arguments)
                except exceptions.NoScriptError:  # it ran nothing: the only error after which a call is repeated
                    return await self._client.eval(script.text, len(keys), *keys, *arguments)
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError, TimeoutError) as error:
            await self._forget_connections()
            raise StateUnavailable(kind_of(error), f"{type(error).__name__}: {error}") from error

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Calls `heard` with each message, until the connection breaks: then StateUnavailable."""
        client: Redis | None = None
        try:
            await self._find_nodes()
            client = self._any_node()
            subscription: Subscription = client.pubsub()
            try:
                await subscription.subscribe(channel)
                async for message in subscription.listen():
                    if message["type"] == "message":
                        heard(message["data"].decode())
            finally:
                await subscription.aclose()
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError, TimeoutError) as error:
            raise StateUnavailable(kind_of(error), f"{type(error).__name__}: {error}") from error
        finally:
            if client is not None and client is not self._client:
                await client.aclose()

    async def close(self) -> None:
        with suppress(exceptions.RedisError, OSError):
            await self._client.aclose()
            if isinstance(self._client, Redis):
                manager = getattr(self._client.connection_pool, "sentinel_manager", None)
                for sentinel in manager.sentinels if manager is not None else ():
                    await sentinel.aclose()

    async def _forget_connections(self) -> None:
        """A server that lost its role answers READONLY on the same connection for ever."""
        with suppress(exceptions.RedisError, exceptions.RedisClusterException, OSError):
            if isinstance(self._client, RedisCluster):
                await self._client.aclose()  # the next call finds the nodes anew
            else:
                await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _find_nodes(self) -> None:
        """A no-op while a cluster's nodes are known."""
        if isinstance(self._client, RedisCluster):
            async with asyncio.timeout(FIND_S):
                await self._client.initialize()

    def _any_node(self) -> Redis:
        """Where to subscribe: in a cluster a message reaches all nodes."""
        client = self._client
        if not isinstance(client, RedisCluster):
            return client
        if (node := client.get_random_node()) is None:
            raise StateUnavailable("cluster", "no node of the cluster is known")
        settings = {k: v for k, v in node.connection_kwargs.items() if k in _NODE_SETTINGS}
        return Redis(host=node.host, port=int(node.port), **settings)


_NODE_SETTINGS = frozenset(
    {"username", "password", "ssl", "socket_connect_timeout", "socket_timeout", "socket_keepalive"}
)


def client_of(url: str) -> Redis | RedisCluster:
    """The client for a URL. Raises BadUrl."""
    settings: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,  # every call has a time-out of its own
        "retry": Retry(NoBackoff(), 0),
    }
    scheme = url.split("://", 1)[0]
    try:
        if scheme in ("redis", "rediss", "unix"):
            keepalive = {} if scheme == "unix" else {"socket_keepalive": True}
            return Redis.from_url(url, health_check_interval=0, max_connections=1000, **keepalive, **settings)
        if scheme in ("redis+cluster", "rediss+cluster"):
            return RedisCluster.from_url(url.replace("+cluster", "", 1), **settings)
        if scheme in ("redis+sentinel", "rediss+sentinel"):
            return _sentinel(url, settings)
    except ValueError:  # its text may hold parts of the URL, and so of a password
        raise BadUrl("--redis-url: not a valid URL; expected SCHEME://[USER:PASSWORD@]HOST:PORT[/DB]") from None
    raise BadUrl(
        "--redis-url: expected redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, "
        f"got {scheme!r} before '://'"
    )


def _sentinel(url: str, settings: dict[str, Any]) -> Redis:
    """`redis+sentinel://user:password@host:port,host:port/name?db=0`; the password is the servers'. That of the
    sentinels, if they have one, comes as `sentinel_password=`."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    name = parts.path.strip("/")
    if not name or not hosts:
        raise BadUrl("--redis-url: expected redis+sentinel://HOST:PORT,HOST:PORT/NAME")
    query = parse_qs(parts.query)
    addresses = []
    for host in hosts.split(","):
        address, _, port = host.partition(":")
        addresses.append((address, int(port or _SENTINEL_PORT)))
    servers = {**settings, "username": unquote(user) or None, "password": unquote(password) or None}
    tls = {"ssl": True} if parts.scheme == "rediss+sentinel" else {}
    sentinel_password = query.get("sentinel_password", [None])[0]
    sentinels = {**settings, **tls, "password": sentinel_password}
    sentinel = Sentinel(addresses, sentinel_kwargs=sentinels, **servers, **tls)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(name, db=int(query.get("db", ["0"])[0]))
    return client
