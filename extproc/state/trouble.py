"""The one error for everything that Redis or Valkey can say, and its kinds."""

from __future__ import annotations

import hiredis
from redis import exceptions

from extproc.errors import StateUnavailable

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
ERRORS = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    hiredis.ReplyError,
    hiredis.ProtocolError,
    OSError,
    TimeoutError,
)
"""What a client, a connection or a server may say."""


def kind_of(error: Exception) -> str:
    """A short label of what went wrong. The server's own word comes first: a script's error, and one that ended a connection's
    greeting, carries it somewhere in its text."""
    words = (word.strip(":,'-") for word in str(error).split())
    if said := next((_WORDS[word] for word in words if word in _WORDS), None):
        return said
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "error")


def unavailable(error: Exception) -> StateUnavailable:
    return StateUnavailable(kind_of(error), f"{type(error).__name__}: {error}")
