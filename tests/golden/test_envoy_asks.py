"""The shipped Envoy configuration asking a processor: what reaches us, and what of ours reaches engines and clients.

The processor is written with the official protobuf classes and knows nothing of our code.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from envoy.config.core.v3 import base_pb2 as core
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.type.v3 import http_status_pb2 as status

from tests.support.envoy_process import running_envoy, shipped_config
from tests.support.upstream import Upstream, running_upstream

SERVING = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse{status: SERVING}."""


def header(name: str, value: str) -> core.HeaderValueOption:
    overwrite = core.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    return core.HeaderValueOption(header=core.HeaderValue(key=name, raw_value=value.encode()), append_action=overwrite)


@dataclass
class Processor:
    """Refuses /refuse; admits the rest with headers, metadata and a wish for the body. Notes what it was told."""

    bodies: list[bytes] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    health_checked: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    streams_open: int = 0
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def process(self, messages: AsyncIterator[Any], _: object) -> AsyncIterator[Any]:
        self.streams_open += 1
        self.all_ended.clear()
        try:
            async for message in messages:
                async for reply in self.answer(message):
                    yield reply
        finally:
            self.streams_open -= 1
            if not self.streams_open:
                self.all_ended.set()

    async def answer(self, message: Any) -> AsyncIterator[Any]:
        kind = message.WhichOneof("request")
        reply = ext_proc.ProcessingResponse()
        if kind == "request_headers":
            path = next(h.raw_value for h in message.request_headers.headers.headers if h.key == ":path")
            if path == b"/wait":
                hold = ext_proc.ProcessingResponse()
                hold.override_message_timeout.seconds = 30
                yield hold
                self.held.set()
                await self.release.wait()
            yield refusal() if path == b"/refuse" else admission()
            return
        if kind == "request_body":
            self.bodies.append(message.request_body.body)
            reply.request_body.SetInParent()
        elif kind == "response_headers":
            attributes = message.attributes["envoy.filters.http.ext_proc"].fields
            self.engines.append(attributes["upstream.address"].string_value)
            reply.response_headers.SetInParent()
        else:
            reply.response_trailers.SetInParent()
        yield reply

    async def check(self, _: bytes, __: object) -> bytes:
        self.health_checked.set()
        return SERVING


def admission() -> ext_proc.ProcessingResponse:
    reply = ext_proc.ProcessingResponse()
    mutation = reply.request_headers.response.header_mutation
    mutation.set_headers.extend([header("x-vllm-priority", "0"), header("x-extproc-priority", "P0")])
    mode = modes.ProcessingMode
    reply.mode_override.request_body_mode = mode.BUFFERED
    reply.mode_override.response_header_mode = mode.SEND
    reply.mode_override.response_trailer_mode = mode.SEND
    reply.dynamic_metadata.update({"extproc": {"outcome": "admitted", "priority": "P0"}})
    return reply


def refusal() -> ext_proc.ProcessingResponse:
    reply = ext_proc.ProcessingResponse()
    reply.immediate_response.status.code = status.StatusCode.TooManyRequests
    reply.immediate_response.body = b'{"error": {}}'
    names = {"retry-after": "7", "retry-after-ms": "6400", "x-extproc-reason": "overload", "x-should-retry": "true"}
    names["content-type"] = "application/json"
    reply.immediate_response.headers.set_headers.extend(header(name, value) for name, value in names.items())
    reply.dynamic_metadata.update({"extproc": {"outcome": "shed"}})
    return reply


@contextlib.asynccontextmanager
async def serving(processor: Processor) -> AsyncIterator[int]:
    """The processor on an ephemeral port, which is given."""
    server = grpc.aio.server()
    process = grpc.stream_stream_rpc_method_handler(
        processor.process,
        request_deserializer=ext_proc.ProcessingRequest.FromString,
        response_serializer=ext_proc.ProcessingResponse.SerializeToString,
    )
    check = grpc.unary_unary_rpc_method_handler(processor.check)
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": process}),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@dataclass
class Stack:
    processor: Processor
    upstream: Upstream
    url: str
    session: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def running_stack(folder: Path) -> AsyncIterator[Stack]:
    processor = Processor()
    async with serving(processor) as port, running_upstream() as upstream:
        config = shipped_config(extproc_port=port, engine_ports=[upstream.port], engine_max_requests=4)
        async with running_envoy(config, folder) as (url, _), aiohttp.ClientSession() as session:
            yield Stack(processor, upstream, url, session)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path) as stack:
        yield stack


async def test_what_we_say_reaches_engine_and_log_and_what_we_ask_for_reaches_us(stack: Stack) -> None:
    async with asyncio.timeout(10):
        body = b'{"prompt": "' + b"x" * (1 << 20) + b'"}'
        sent = {"x-vllm-priority": "-9"}
        answer = await stack.session.post(f"{stack.url}/v1/chat", data=io.BytesIO(body), headers=sent)
        seen = await answer.json()
        await stack.processor.all_ended.wait()
    assert (answer.status, seen["x-vllm-priority"], seen["x-extproc-priority"]) == (200, "0", "P0")
    assert stack.processor.bodies == [body]
    assert stack.processor.engines == [f"127.0.0.1:{stack.upstream.port}"]


async def test_a_refusal_arrives_whole(stack: Stack) -> None:
    async with asyncio.timeout(10):
        answer = await stack.session.post(f"{stack.url}/refuse", data=b"{}")
        body = await answer.read()
    assert (answer.status, body) == (429, b'{"error": {}}')
    said = {"retry-after": "7", "retry-after-ms": "6400", "x-extproc-reason": "overload", "x-should-retry": "true"}
    assert {name: answer.headers[name] for name in said} == said
    assert answer.headers.getall("content-type") == ["application/json"]
    assert len(answer.headers.getall("x-request-id")) == 1


async def test_a_request_may_wait_longer_than_message_timeout_and_its_stream_lives_as_long_as_the_response(
    stack: Stack,
) -> None:
    processor, upstream = stack.processor, stack.upstream
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(stack.session.post(f"{stack.url}/wait", data=b"{}"))
        await processor.held.wait()
        # Twice Envoy's message_timeout: without the extension it would have let the request pass.
        await asyncio.sleep(0.5)
        assert upstream.seen == 0
        processor.release.set()
        assert (await waiting).status == 200
        held = group.create_task(stack.session.post(f"{stack.url}/hold", data=b"{}"))
        await upstream.opened.wait()
        assert processor.streams_open == 1
        upstream.finish.set()
        await held
        await processor.all_ended.wait()


async def test_what_we_note_is_in_the_access_log(tmp_path: Path) -> None:
    async with asyncio.timeout(10), running_stack(tmp_path) as stack:
        await (await stack.session.get(f"{stack.url}/v1/models")).read()
    lines = (tmp_path / "envoy.log").read_text().splitlines()
    (line,) = [json.loads(line) for line in lines if line.startswith("{")]
    assert line["extproc"] == {"outcome": "admitted", "priority": "P0"}
    assert line["engine"] == f"127.0.0.1:{stack.upstream.port}"


async def test_envoy_asks_after_our_health(stack: Stack) -> None:
    async with asyncio.timeout(10):
        await stack.processor.health_checked.wait()
