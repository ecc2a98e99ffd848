"""A dead connection is told from a live one by its socket: TCP of both kinds, and Unix sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from extproc.wire.connections import Connections


class Pair:
    """A connection: the end that we accepted, and the far end."""

    def __init__(self, ours: socket.socket, far: socket.socket, peer: str) -> None:
        self.ours, self.far, self.peer = ours, far, peer

    def close(self) -> None:
        self.ours.close()
        self.far.close()


def _connect(family: socket.AddressFamily, address: str, exits: ExitStack) -> Pair:
    listener = socket.socket(family, socket.SOCK_STREAM)
    exits.callback(listener.close)
    listener.bind(address if family == socket.AF_UNIX else (address, 0))
    listener.listen()
    far = socket.socket(family, socket.SOCK_STREAM)
    far.connect(listener.getsockname())
    ours, remote = listener.accept()
    if family == socket.AF_UNIX:
        pair = Pair(ours, far, "unix:")
    elif family == socket.AF_INET:
        pair = Pair(ours, far, f"ipv4:{remote[0]}:{remote[1]}")
    else:
        pair = Pair(ours, far, f"ipv6:%5B{remote[0]}%5D:{remote[1]}")
    exits.callback(pair.close)
    return pair


@pytest.fixture(params=["tcp4", "tcp6", "unix"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    families = {
        "tcp4": (socket.AF_INET, "127.0.0.1"),
        "tcp6": (socket.AF_INET6, "::1"),
        "unix": (socket.AF_UNIX, str(tmp_path / "socket")),
    }
    with ExitStack() as exits:
        yield _connect(*families[request.param], exits)


def test_a_live_connection_is_not_lost(pair: Pair) -> None:
    connections = Connections()
    connections.watch(pair.peer, 0.0)
    assert not connections.lost(pair.peer, 0.1)
    assert connections.deaths == 0


def test_the_other_side_closes(pair: Pair) -> None:
    connections = Connections()
    connections.watch(pair.peer, 0.0)
    pair.far.close()
    assert connections.lost(pair.peer, 0.1)
    assert connections.lost(pair.peer, 0.11), "every stream of the connection is told"
    assert connections.deaths == 1


def test_the_other_side_resets(pair: Pair) -> None:
    connections = Connections()
    connections.watch(pair.peer, 0.0)
    pair.ours.send(b"never read")
    pair.far.close()
    assert connections.lost(pair.peer, 0.1)


def test_our_side_is_closed_and_its_number_used_again(pair: Pair) -> None:
    connections = Connections()
    connections.watch(pair.peer, 0.0)
    number = pair.ours.fileno()
    pair.ours.close()
    with socket.socket() as other:
        assert other.fileno() == number, "the lowest free number is given out first"
        assert connections.lost(pair.peer, 0.1)


def test_a_peer_that_was_never_watched_or_makes_no_sense_is_not_lost() -> None:
    connections = Connections()
    for peer in ("ipv4:192.0.2.1:9", "nonsense", "ipv4:x"):
        assert not connections.lost(peer, 0.0)
        connections.watch(peer, 0.0)
        assert not connections.lost(peer, 0.0)


def test_watching_leaks_no_descriptor(pair: Pair) -> None:
    connections = Connections()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        connections.watch(f"ipv4:192.0.2.1:{number}", 0.0)
    connections.watch(pair.peer, 0.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_dead_peer_is_forgotten_and_its_port_may_come_again(pair: Pair) -> None:
    connections = Connections()
    connections.watch(pair.peer, 0.0)
    pair.far.close()
    assert connections.lost(pair.peer, 0.1)
    connections.watch("ipv4:192.0.2.1:9", 5.0)
    assert not connections.lost(pair.peer, 5.1)
