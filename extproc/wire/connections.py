"""Tells a connection that died from a stream that ended, which gRPC reports alike.

When Envoy's connection to us breaks, Envoy lets the requests on it go on without us; when a single stream ends, its
request is over. grpc's Python API shows both as the same end of stream, so we look at the socket itself: found among
our own file descriptors by its peer's address, remembered by descriptor and inode, and asked with poll(2) whether the
other side is gone. The kernel knows that before any stream of the connection is told.

Linux only (`/proc/self/fd`); elsewhere no connection is ever called lost. On Unix sockets all peers have the same name:
there the streams that end while one of the connections dies are taken for its streams.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import stat
from urllib.parse import unquote

_FDS = "/proc/self/fd"
_RDHUP = getattr(select, "POLLRDHUP", 0)
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | _RDHUP
_RESCAN_S = 1.0
"""Unix sockets: how often to look for new connections."""
_DYING_S = 0.25
"""Unix sockets: streams that end within this time of a connection's death are taken for its own."""


class _Socket:
    """A descriptor that grpc owns, and the inode that it had: a closed number is soon used for another file."""

    __slots__ = ("_fd", "_inode", "_poll")

    def __init__(self, fd: int, inode: int) -> None:
        self._fd = fd
        self._inode = inode
        self._poll = select.poll()
        self._poll.register(fd, _RDHUP)

    def gone(self) -> bool:
        try:
            if os.fstat(self._fd).st_ino != self._inode:
                return True
        except OSError:
            return True
        return any(events & _GONE for _, events in self._poll.poll(0))


class Connections:
    """The connections that streams came in on. `peer` is grpc's name for the other side, `now` clock seconds."""

    def __init__(self) -> None:
        self._sockets: dict[str, tuple[_Socket, ...]] = {}
        self._scanned_at: dict[str, float] = {}
        self._died_at: dict[str, float] = {}
        self.deaths = 0
        """Connections found dead so far."""

    def watch(self, peer: str, now: float) -> None:
        """At the start of a stream. Looks for the socket where the peer is new: about 0.1 ms per hundred descriptors."""
        known = peer in self._sockets
        if known and (not _many_connections(peer) or now - self._scanned_at[peer] < _RESCAN_S):
            return
        self._forget_the_dead()
        self._sockets[peer] = _find(peer)
        self._scanned_at[peer] = now

    def lost(self, peer: str, now: float) -> bool:
        """At the end of a stream: whether its connection has ended as well. Costs two system calls."""
        sockets = self._sockets.get(peer, ())
        dead = [s for s in sockets if s.gone()]
        if dead:
            self.deaths += len(dead)
            self._died_at[peer] = now
            self._sockets[peer] = tuple(s for s in sockets if s not in dead)
        died_at = self._died_at.get(peer)
        return died_at is not None and (not _many_connections(peer) or now - died_at < _DYING_S)

    def _forget_the_dead(self) -> None:
        """A TCP peer's port may be used again by a later connection, of which the streams start with `watch`."""
        for peer in [p for p, sockets in self._sockets.items() if all(s.gone() for s in sockets)]:
            for table in (self._sockets, self._scanned_at, self._died_at):
                table.pop(peer, None)


def _many_connections(peer: str) -> bool:
    return peer.startswith("unix")


def _find(peer: str) -> tuple[_Socket, ...]:
    """Our ends of the connections to `peer`: one for TCP, all of them for Unix sockets."""
    found = []
    try:
        fds = [int(name) for name in os.listdir(_FDS)]
    except OSError:
        return ()
    wanted = None if _many_connections(peer) else _address(peer)
    for fd in fds:
        ours = _inspect(fd, wanted)
        if ours is not None:
            found.append(ours)
    return tuple(found)


def _inspect(fd: int, wanted: tuple[str, int] | None) -> _Socket | None:
    """The socket, if it is connected to `wanted`; None stands for any peer on a Unix socket that we listen on."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISSOCK(status.st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as sock:
            remote, local, family = sock.getpeername(), sock.getsockname(), sock.family
    except OSError:  # not connected, or closed meanwhile
        return None
    if family == socket.AF_UNIX:
        matches = wanted is None and bool(local)  # sockets that we opened ourselves have no name
    else:
        matches = wanted is not None and family in (socket.AF_INET, socket.AF_INET6) and _plain(remote) == wanted
    return _Socket(fd, status.st_ino) if matches else None


def _address(peer: str) -> tuple[str, int] | None:
    """`ipv4:10.0.0.1:4242`, `ipv6:%5B::1%5D:4242`; None for anything else."""
    scheme, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain((host.strip("[]"), int(port)))


def _plain(address: tuple[str, int]) -> tuple[str, int]:
    """IPv4 in IPv6's clothes is IPv4; scope ids do not count."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip), address[1]
