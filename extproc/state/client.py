"""The client for a URL: a single server, Sentinel or Cluster; passwords, TLS, both protocols. Connected to nowhere yet.

Its own retries are off: a call that ran but whose answer was lost must not run twice without our knowing.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from redis import exceptions
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from extproc.errors import ExtprocError

CONNECT_S = 1.0
_SENTINEL_PORT = 26379


class BadUrl(ExtprocError):
    """`--redis-url` is not one; the message says what was expected, and never repeats a password."""


def client_of(url: str) -> Redis | RedisCluster:
    """The client for a URL, its options tried. Raises BadUrl."""
    settings: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,  # every call has a time-out of its own
        "retry": _no_retry(),
    }
    try:
        client = _client(url, settings)
        _try_options(client)
    except OSError as error:
        raise BadUrl(f"--redis-url: its certificates cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, exceptions.RedisError):  # its text may hold parts of the URL, and so of a password
        expected = "SCHEME://[USER:PASSWORD@]HOST:PORT[/DB][?OPTION=VALUE&...]"
        raise BadUrl(f"--redis-url: not a valid URL; expected {expected}") from None
    return client


def _try_options(client: Redis | RedisCluster) -> None:
    """Makes what a connection would be made of, connected to nowhere: else a mistake would show at every call."""
    options = client.connection_kwargs if isinstance(client, RedisCluster) else client.connection_pool.connection_kwargs
    if isinstance(client, Redis):
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    if tls := {key: value for key, value in options.items() if key.startswith("ssl_")}:
        SSLConnection(**tls).ssl_context.get()


def _client(url: str, settings: dict[str, Any]) -> Redis | RedisCluster:
    match url.split("://", 1)[0]:
        case "redis" | "rediss" | "unix" as scheme:
            keepalive = {} if scheme == "unix" else {"socket_keepalive": True}
            return Redis.from_url(url, health_check_interval=0, max_connections=1000, **keepalive, **settings)
        case "redis+cluster" | "rediss+cluster":
            found_within = {"socket_timeout": CONNECT_S}  # a node that is silent is not the only one to tell of all
            return RedisCluster.from_url(url.replace("+cluster", "", 1), **{**settings, **found_within})
        case "redis+sentinel" | "rediss+sentinel":
            return _sentinel(url, settings)
        case scheme:
            raise BadUrl(
                "--redis-url: expected redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, "
                f"got {scheme!r} before '://'"
            )


def _sentinel(url: str, settings: dict[str, Any]) -> Redis:
    """`redis+sentinel://user:password@host:port,host:port/name?db=0`; user and password are the servers'. Those of the
    sentinels, if they have any, come as `sentinel_username=` and `sentinel_password=`; what else may follow the `?` is the
    client's own, such as `ssl_ca_certs=`, and holds for both."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    name = parts.path.strip("/")
    if not name or not hosts:
        raise BadUrl("--redis-url: expected redis+sentinel://HOST:PORT,HOST:PORT/NAME")
    query: dict[str, Any] = {k: v for k, v in parse_url(f"redis://host?{parts.query}").items() if k != "host"}
    sentinels_login = {
        "username": query.pop("sentinel_username", None),
        "password": query.pop("sentinel_password", None),
    }
    database = query.pop("db", 0)
    addresses = []
    for host in hosts.split(","):
        address, _, port = host.partition(":")
        addresses.append((address, int(port or _SENTINEL_PORT)))
    tls = {"ssl": True} if parts.scheme == "rediss+sentinel" else {}
    common = {**settings, **query, **tls}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        addresses,
        sentinel_kwargs={**common, **sentinels_login},
        **common,
        username=unquote(user) or None,
        password=unquote(password) or None,
    )
    client: Redis = sentinel.master_for(name, db=database)
    return client


_NODE_SETTINGS = frozenset({"username", "password", "protocol", "socket_connect_timeout", "socket_keepalive"})


def client_of_node(node: ClusterNode) -> Redis:
    """For one node of a cluster alone, with the cluster's settings."""
    given = node.connection_kwargs
    settings = {k: v for k, v in given.items() if k in _NODE_SETTINGS or k.startswith("ssl_")}
    tls = issubclass(node.connection_class, SSLConnection)
    return Redis(host=node.host, port=int(node.port), ssl=tls, retry=_no_retry(), **settings)


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)
