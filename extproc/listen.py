"""Addresses to listen on, as operators write them."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from extproc.errors import CannotListen


def split_address(flag: str, listen: str, *, also: str = "") -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (all interfaces) as host and port. CannotListen that says what was expected.

    `flag`: the option it came by; `also`: what else that option takes, for the message.
    """
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None or parts.netloc != listen or "@" in listen:
        raise CannotListen(f"{flag}: expected host:port such as 127.0.0.1:8080 or [::1]:8080{also}, got {listen!r}")
    return host, port


def somebody_listens(path: str) -> bool:
    """Whether a server answers on the Unix socket `path`; a file left behind by one that is gone does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
