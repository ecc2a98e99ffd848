"""A closed-loop HTTP/1.1 load generator in a process of its own: so many connections, each sends its next request when the
last one is answered.

    python -m bench.load HOST PORT CONNECTIONS SECONDS BODY_BYTES      prints one line of JSON

Plain sockets and epoll: about 20 us of processor a request, so that two cores can measure something else. A closed loop
tells throughput and unloaded latency; it says nothing of behaviour under overload (`extproc demo` does, open loop).
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import statistics
import sys
import time
from dataclasses import dataclass

from bench.requests import chat_body, http_request

WARM_UP_S = 0.2
"""Not counted: connections, caches, and what the interpreter specialises."""
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class _Connection:
    """`left`: what of the request is not written yet; `blocked`: the socket takes no more for now."""

    sock: socket.socket
    left: memoryview
    blocked: bool = False
    received: bytes = b""
    sent_at: float = 0.0


class Generator:
    """`latencies_s` and `failures` (answers other than 200) count from the end of the warm-up on."""

    def __init__(self, host: str, port: int, *, connections: int, request: bytes) -> None:
        self._request = memoryview(request)
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._counting = False
        self.latencies_s: list[float] = []
        self.failures = 0
        for _ in range(connections):
            sock = socket.create_connection((host, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            connection = self._connections[sock.fileno()] = _Connection(sock, memoryview(b""))
            self._epoll.register(sock.fileno(), select.EPOLLIN)
            self._send_next(connection)

    def run(self, seconds: float) -> float:
        """Returns how long was counted. Raises ConnectionError where the other side hangs up."""
        warm = time.perf_counter() + WARM_UP_S
        self._run_until(warm)
        self._counting, start = True, time.perf_counter()
        self._run_until(start + seconds)
        return time.perf_counter() - start

    def _run_until(self, end: float) -> None:
        while time.perf_counter() < end:
            for fd, events in self._epoll.poll(0.1):
                connection = self._connections[fd]
                if events & select.EPOLLOUT:
                    self._write(connection)
                if events & ~select.EPOLLOUT:
                    self._read(connection)

    def _send_next(self, connection: _Connection) -> None:
        connection.received, connection.left = b"", self._request
        connection.sent_at = time.perf_counter()
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            connection.left = connection.left[connection.sock.send(connection.left) :]
        if bool(connection.left) is not connection.blocked:
            connection.blocked = bool(connection.left)
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.blocked else 0)
            self._epoll.modify(connection.sock.fileno(), wanted)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the gateway closed a connection")
        received = connection.received = connection.received + data
        head = received.find(_HEAD_END)
        if head < 0:
            return
        length = _LENGTH.search(received, 0, head)
        if length is None:
            raise ConnectionError(f"an answer without a length: {received[:200]!r}")
        if len(received) < head + len(_HEAD_END) + int(length[1]):
            return
        if self._counting:
            self.latencies_s.append(time.perf_counter() - connection.sent_at)
            self.failures += not received.startswith(b"HTTP/1.1 200")
        self._send_next(connection)


def main(host: str, port: str, connections: str, seconds: str, body_bytes: str) -> None:
    request = http_request(chat_body(int(body_bytes)))
    generator = Generator(host, int(port), connections=int(connections), request=request)
    took_s = generator.run(float(seconds))
    latencies = sorted(generator.latencies_s)
    result = {
        "rps": len(latencies) / took_s,
        "p50_ms": 1000 * statistics.median(latencies),
        "p99_ms": 1000 * latencies[int(0.99 * len(latencies))],
        "failures": generator.failures,
    }
    print(json.dumps(result))  # noqa: T201 - the answer to who started us


if __name__ == "__main__":
    main(*sys.argv[1:])
