"""The gRPC server by itself: where it listens, what it says of its health, how it stops, how much it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as official
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.clock import LoopClock
from extproc.errors import CannotListen
from extproc.wire.ext_proc import SERVICE, ExtProcService
from extproc.wire.server import WireServer
from tests.support.eventually import eventually
from tests.support.observing import Remembering
from tests.support.spine import Spine, tail_queues

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio keeps to one loop per process
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def served(
    listen: str = "127.0.0.1:0", *, limit: int = 1
) -> AsyncIterator[tuple[WireServer, Spine, grpc.aio.Channel]]:
    clock, observer = LoopClock(asyncio.get_running_loop()), Remembering()
    spine = Spine(limit=limit, clock=clock, observer=observer, policy=tail_queues(3000))
    service = ExtProcService(lambda: spine.admission, observer=observer, clock=clock, envoy=lambda: spine.policy.envoy)
    server = WireServer(service, listen=listen, max_body_bytes=1 << 20)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield server, spine, channel
    finally:
        await server.stop(0.0)


def process(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=official.ProcessingRequest.SerializeToString,
        response_deserializer=official.ProcessingResponse.FromString,
    )()


def headers(length: int = 0) -> official.ProcessingRequest:
    message = official.ProcessingRequest()
    call = ((":method", "POST"), (":path", "/v1/completions"), ("content-type", "application/json"))
    for key, value in (*call, ("content-length", str(length))):
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return message


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_health_follows_draining_for_checks_and_watchers(name: str) -> None:
    async with served() as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=name)
        assert (await stub.Check(request)).status == SERVING
        watch = stub.Watch(request)
        assert (await watch.read()).status == SERVING
        await server.drain()
        assert (await watch.read()).status == NOT_SERVING
        assert (await stub.Check(request)).status == NOT_SERVING
        assert not server.serving
        watch.cancel()


async def test_a_watcher_does_not_hold_up_the_stop() -> None:
    async with served() as (server, _, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        async with asyncio.timeout(2):
            await server.stop(30.0)


async def test_a_running_stream_is_followed_up_to_the_grace_time() -> None:
    async with served() as (server, spine, channel):
        call = process(channel)
        await call.write(headers())
        assert (await call.read()).WhichOneof("response") == "request_headers"
        stopping = asyncio.ensure_future(server.stop(30.0))
        await eventually(lambda: not stopping.done() and spine.running == 1)
        await call.done_writing()
        async with asyncio.timeout(2):
            await stopping
        assert spine.running == 0


async def test_two_servers_do_not_share_a_port() -> None:
    async with served() as (server, _, _):
        with pytest.raises(CannotListen, match=server.address):
            async with served(server.address):
                pass


async def test_it_listens_on_a_unix_socket_and_again_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "wire.sock"
    for _ in range(2):
        async with served(f"unix:{path}") as (server, _, channel):
            assert server.address == f"unix:{path}"
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING


async def test_two_thousand_streams_that_come_at_once_wait_on_one_connection() -> None:
    """grpc refuses some of a burst above 1000 unless told otherwise, which Envoy takes for *go on without me*."""
    async with served(limit=1) as (server, spine, channel):
        calls = [process(channel) for _ in range(2000)]
        for call in calls:
            await call.write(headers())
        await eventually(lambda: spine.waiting == 1999, within_s=20)
        assert server.streams == 2000
        for call in calls:
            call.cancel()
        await eventually(lambda: server.streams == 0, within_s=20)
        assert (spine.running, spine.waiting) == (0, 0)


async def test_a_body_far_above_grpcs_default_limit_is_taken() -> None:
    async with served(limit=4) as (_, spine, channel):
        call = process(channel)
        await call.write(headers(length=1000))
        await call.read()
        body = official.ProcessingRequest()
        body.request_body.body = b"x" * (8 << 20)
        await call.write(body)
        assert (await call.read()).WhichOneof("response") == "request_body"
        assert spine.running == 1
        call.cancel()


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "nonsense", "unix:", "127.0.0.1"])
async def test_an_address_that_is_none_is_refused_in_our_words(listen: str) -> None:
    with pytest.raises(CannotListen, match="--listen: expected"):
        async with served(listen):
            pytest.fail("it must not come up")


async def test_a_socket_that_somebody_serves_is_not_taken_from_him(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/grpc"
    async with served(listen):
        with pytest.raises(CannotListen, match="somebody else does"):
            async with served(listen):
                pytest.fail("it must not come up")
