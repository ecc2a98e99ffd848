"""The admin server over real HTTP on an ephemeral port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from extproc.admin.http import AdminServer
from extproc.admin.metrics import Metrics
from extproc.errors import CannotListen
from extproc.model import Outcome, Priority
from tests.support.snapshots import POOL, SERVICE, GivenSource, service

POLICY = {"queues": [{"priority": 0, "name": "realtime-interactive", "timeout": "8s"}], "trust": {"headers": []}}


class Running:
    """A server, what it shows, and a client."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.source = GivenSource()
        self.metrics = Metrics(["llama"])
        self.client = client
        self.server = AdminServer(
            listen="127.0.0.1:0",
            source=self.source,
            metrics=self.metrics,
            policy_view=lambda: POLICY,
            wall=lambda: 1_700_000_060.0,
        )

    def url(self, path: str) -> str:
        return f"http://{self.server.address}{path}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.client.get(self.url(path), headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with aiohttp.ClientSession() as client:
        made = Running(client)
        await made.server.start()
        try:
            yield made
        finally:
            await made.server.stop()


async def test_port_0_is_reported(running: Running) -> None:
    host, port = running.server.address.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0


async def test_health_is_independent_of_everything(running: Running) -> None:
    running.source.state = RuntimeError("broken")
    assert await running.get("/healthz") == (200, "ok\n")


@pytest.mark.parametrize("draining", [False, True])
async def test_readiness(running: Running, draining: bool) -> None:
    running.source.state = service(draining=draining)
    status, text = await running.get("/readyz")
    assert status == (503 if draining else 200)
    document = json.loads(text)
    assert document["ready"] is not draining
    assert set(document["components"]) == {"policy", "wire", "engines"}


async def test_state(running: Running) -> None:
    running.metrics.decided(Outcome.SHED, Priority.P2, "llama", waited_s=0.0)
    status, text = await running.get("/state")
    document = json.loads(text)
    assert status == 200
    assert document["time"] == 1_700_000_060.0
    assert document["pools"][0]["priorities"]["P2"]["requests"] == {"shed": 1}
    assert document["pools"][0]["limit"]["slots"] is None


@pytest.mark.parametrize("path", ["/state", "/readyz"])
async def test_a_bug_in_the_state_is_said_and_passes(running: Running, path: str) -> None:
    running.source.state = ZeroDivisionError("no")
    status, text = await running.get(path)
    assert status == 503
    assert json.loads(text)["error"] == "the service's state cannot be read: ZeroDivisionError: no"
    running.source.state = SERVICE
    assert (await running.get(path))[0] == 200


async def test_metrics_as_text(running: Running) -> None:
    async with running.client.get(running.url("/metrics")) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        families = {family.name for family in parse_text(await answer.text())}
    assert {"extproc_requests", "extproc_pool_limit_tokens", "extproc_build_info"} <= families


async def test_metrics_as_openmetrics_when_asked(running: Running) -> None:
    accept = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
    async with running.client.get(running.url("/metrics"), headers={"accept": accept}) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name for family in parse_openmetrics(await answer.text())}  # type: ignore[no-untyped-call]
    assert {"extproc_requests", "extproc_pool_limit_tokens"} <= families


async def test_metrics_narrowed_by_name(running: Running) -> None:
    _, text = await running.get("/metrics?name[]=extproc_streams&name[]=extproc_draining")
    assert {family.name for family in parse_text(text)} == {"extproc_streams", "extproc_draining"}


async def test_metrics_survive_a_bug_in_the_state(running: Running) -> None:
    running.source.state = ZeroDivisionError("no")
    status, text = await running.get("/metrics")
    assert status == 200
    assert "extproc_snapshot_errors_total 1.0" in text


async def test_policy_is_yaml_in_its_own_order(running: Running) -> None:
    status, text = await running.get("/policy")
    assert status == 200
    assert yaml.safe_load(text) == POLICY
    assert text.index("queues") < text.index("trust")


async def test_the_live_page_needs_nothing_from_elsewhere(running: Running) -> None:
    async with running.client.get(running.url("/")) as answer:
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        text = await answer.text()
    assert "<title>extproc</title>" in text
    assert "//" not in text.replace("// Everything from the server", ""), "an address outside"
    assert "innerHTML" not in text


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/state", "/policy"])
async def test_head_is_get_without_a_body_and_nothing_is_cached(running: Running, path: str) -> None:
    async with running.client.head(running.url(path)) as answer:
        assert answer.status == 200
        assert answer.headers["cache-control"] == "no-store"
        assert await answer.read() == b""


async def test_unknown_paths_and_methods(running: Running) -> None:
    assert (await running.get("/nothing"))[0] == 404
    async with running.client.post(running.url("/state"), data=b"x") as answer:
        assert answer.status == 405
        assert answer.headers["allow"] == "GET,HEAD"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_taken_port_is_named(running: Running) -> None:
    second = AdminServer(
        listen=running.server.address, source=running.source, metrics=Metrics(), policy_view=lambda: POLICY
    )
    with pytest.raises(
        CannotListen, match=rf"--admin-listen: cannot listen on {running.server.address}: Address already in use"
    ):
        await second.start()
    assert second.address == ""


async def test_a_name_that_does_not_resolve_is_named(running: Running) -> None:
    server = AdminServer(
        listen="no-such-host.invalid:0", source=running.source, metrics=Metrics(), policy_view=lambda: POLICY
    )
    with pytest.raises(CannotListen, match=r"cannot listen on no-such-host\.invalid:0: \w+"):
        await server.start()


async def test_stopping_frees_the_port_and_the_gauges(running: Running) -> None:
    address = running.server.address
    await running.server.stop()
    await running.server.stop()
    host, port = address.rsplit(":", 1)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=1.0)
    again = AdminServer(listen=address, source=running.source, metrics=running.metrics, policy_view=lambda: POLICY)
    assert await again.start() == address
    await again.stop()


async def test_ipv6_addresses_are_in_brackets() -> None:
    server = AdminServer(listen="[::1]:0", source=GivenSource(), metrics=Metrics(), policy_view=lambda: POLICY)
    address = await server.start()
    assert address.startswith("[::1]:")
    await server.stop()


async def test_answers_are_short_work_for_the_loop(running: Running) -> None:
    """Every page runs on the loop that decides requests: 20 pools of 16 engines must not hold it up."""
    engines = tuple(replace(POOL.engines[0], engine=f"10.0.0.{number}:8000") for number in range(16))
    pools = tuple(replace(POOL, name=f"pool-{number}", engines=engines) for number in range(20))
    running.source.state = service(pools=pools)
    running.metrics.declare_pools(pool.name for pool in pools)
    loop = asyncio.get_running_loop()
    for path, most_s in (("/healthz", 0.05), ("/readyz", 0.05), ("/state", 0.3), ("/metrics", 0.5)):
        await running.get(path)
        begun = loop.time()
        assert (await running.get(path))[0] == 200
        assert loop.time() - begun < most_s, path


async def test_many_pages_asked_for_together_leave_the_loop_to_others_in_between(running: Running) -> None:
    """A thousand at once held up every decision until Envoy let all requests pass."""
    pages = asyncio.gather(*(running.get("/metrics") for _ in range(200)))
    turns = 0
    while not pages.done():
        await asyncio.sleep(0)
        turns += 1
    assert {status for status, _ in await pages} == {200}
    assert turns >= 200
