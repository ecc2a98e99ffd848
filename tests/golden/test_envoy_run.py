"""The shipped Envoy configuration in a running Envoy, while extproc is away: what must hold without us."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.envoy_process import running_envoy, shipped_config
from tests.support.eventually import eventually
from tests.support.upstream import Upstream, running_upstream

LIMIT = 4


def refusing_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[tuple[Upstream, str, aiohttp.ClientSession]]:
    async with running_upstream(full_at=LIMIT) as engine:
        config = shipped_config(extproc_port=refusing_port(), engine_ports=[engine.port], engine_max_requests=LIMIT)
        connector = aiohttp.TCPConnector(limit=0)
        async with running_envoy(config, tmp_path) as (url, _), aiohttp.ClientSession(connector=connector) as session:
            yield engine, url, session


async def test_the_backstop_refuses_with_429_when_extproc_is_away(
    stack: tuple[Upstream, str, aiohttp.ClientSession],
) -> None:
    engine, url, session = stack
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        held = [group.create_task(session.post(f"{url}/hold")) for _ in range(LIMIT)]
        await engine.opened.wait()
        refused = [await session.post(f"{url}/hold") for _ in range(10)]
        bodies = [await answer.json() for answer in refused]
        engine.finish.set()
    assert [(await task).status for task in held] == [200] * LIMIT
    assert engine.most_open == LIMIT
    for answer, body in zip(refused, bodies, strict=True):
        assert answer.status == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["x-extproc-reason"] == "backstop"
        assert answer.headers["content-type"] == "application/json"
        assert body["error"]["type"] == "rate_limit_error"
        assert body["error"]["code"] == "rate_limit_exceeded"
        assert body["error"]["param"] is None


async def test_a_burst_beyond_the_backstop_never_waits_inside_envoy(
    stack: tuple[Upstream, str, aiohttp.ClientSession],
) -> None:
    engine, url, session = stack
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        calls = [group.create_task(session.post(f"{url}/hold")) for _ in range(40)]
        for answered, call in enumerate(asyncio.as_completed(calls), start=1):
            await call
            if answered == 40 - LIMIT:
                await eventually(lambda: engine.most_open >= LIMIT)  # some may be on their way yet
                engine.finish.set()
    statuses = [(await call).status for call in calls]
    assert sorted(statuses) == [200] * LIMIT + [429] * (40 - LIMIT)
    assert engine.most_open == LIMIT


async def test_what_clients_must_not_send_is_stripped_even_when_extproc_is_away(
    stack: tuple[Upstream, str, aiohttp.ClientSession],
) -> None:
    _, url, session = stack
    sent = {
        "x-vllm-priority": "-100",
        "X-Extproc-Priority": "P0",
        "x-envoy-retry-on": "5xx",
        "x-envoy-max-retries": "5",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-priority": "P0",
        "x-tenant-id": "team-a",
        "authorization": "Bearer k",
    }
    async with asyncio.timeout(10):
        answer = await session.get(f"{url}/v1/models", headers=sent)
        seen = await answer.json()
    assert {name for name in map(str.lower, sent) if name in seen} == {"authorization"}
    assert answer.headers["x-request-id"] == seen["x-request-id"]


async def test_no_engine_is_503_with_retry_after_in_the_shape_of_the_api(tmp_path: Path) -> None:
    config = shipped_config(extproc_port=refusing_port(), engine_ports=[refusing_port()], engine_max_requests=LIMIT)
    async with (
        asyncio.timeout(15),
        running_envoy(config, tmp_path) as (url, _),
        aiohttp.ClientSession() as session,
    ):
        answer = await session.post(f"{url}/v1/chat/completions?secret=1", json={})
        body = await answer.json()
    assert (answer.status, answer.headers["retry-after"]) == (503, "3")
    assert answer.headers["x-extproc-reason"] == "unavailable"
    assert body["error"]["code"] == "unavailable"
    log = (tmp_path / "envoy.log").read_text()
    assert "deprecated" not in log
    (line,) = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert (line["status"], line["path"]) == (503, "/v1/chat/completions")
    assert line["request_id"] == answer.headers["x-request-id"]
    assert {"extproc", "flags", "engine", "duration_ms"} <= line.keys()
