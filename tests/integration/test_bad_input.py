"""What clients send that nobody should: the engine's own error comes back, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from extproc.sim.stack import Stack, StackOptions
from tests.support.gateway import CHAT, Gateway, gateway_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SHORT = {**CHAT, "max_tokens": 2, "stream": False}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    options = StackOptions(policy="trust: {headers: [x-priority]}", engines=1, engine_args=("--speed", "20"))
    async with Stack(options) as stack, gateway_of(stack) as gateway:
        yield gateway


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b"null", 400),
        (b"[1, 2]", 400),
        (b"[" * 10_000, 400),
        (json.dumps({**SHORT, "messages": 7}).encode(), 400),
        (json.dumps({**SHORT, "messages": []}).encode(), 400),
        (json.dumps({**SHORT, "max_tokens": "many"}).encode(), 400),
        (json.dumps({**SHORT, "model": "never-heard-of"}).encode(), 404),
        (json.dumps({**SHORT, "model": ["llama-3-8b"]}).encode(), 400),
    ],
)
async def test_bodies_are_the_engines_to_refuse(gateway: Gateway, body: bytes, status: int) -> None:
    reply = await gateway.post(body)
    assert reply.status == status
    assert reply.json["error"]["message"]
    assert "x-extproc-reason" not in reply.headers
    assert (await gateway.post(SHORT)).status == 200


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd.compress)]
)
async def test_compressed_bodies_are_served(gateway: Gateway, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    reply = await gateway.post(pack(json.dumps(SHORT).encode()), headers={"content-encoding": encoding})
    assert reply.status == 200
    assert reply.json["choices"]


async def test_a_missing_model_is_the_engines_to_choose(gateway: Gateway) -> None:
    """vLLM serves its own model then."""
    assert (await gateway.post({"messages": SHORT["messages"], "max_tokens": 1})).status == 200


async def test_a_body_of_ten_megabytes_passes_untouched_and_is_costed_by_length(gateway: Gateway) -> None:
    large = json.dumps({**SHORT, "user": "u" * 10_000_000}).encode()
    assert (await gateway.post(large)).status == 200


async def test_a_chunked_body_above_the_size_we_read_passes_whole(gateway: Gateway) -> None:
    whole = json.dumps({**SHORT, "user": "u" * 6_000_000}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 1 << 16):
            yield whole[start : start + (1 << 16)]

    async with gateway.http.post(
        gateway.url + "/v1/chat/completions", data=chunks(), headers={"content-type": "application/json"}
    ) as response:
        assert response.status == 200


async def test_a_prompt_too_long_to_be_read_is_the_engines_to_refuse(gateway: Gateway) -> None:
    """Above `body.maxBytes` we see a length only. What we read and no engine holds is 413: see the test below."""
    prompt = "x" * 3_600_000  # 900,000 tokens; the engine has 400,000
    reply = await gateway.post({**SHORT, "messages": [{"role": "user", "content": prompt}]})
    assert reply.status == 400
    assert "x-extproc-reason" not in reply.headers


async def test_a_prompt_that_no_engine_holds_is_refused_for_good() -> None:
    async with Stack(StackOptions(engines=1, engine_args=("--kv-tokens", "4096"))) as stack, gateway_of(stack) as small:
        await small.until(lambda pool: pool["engine_max_tokens"] is not None)
        reply = await small.post({**SHORT, "messages": [{"role": "user", "content": "x" * 40_000}]})
    assert reply.status == 413
    assert reply.headers["x-extproc-reason"] == "too-large"
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"x-priority": "P0"},
        {"x-priority": "\u00fcber"},
        {"x-vllm-priority": "-1000"},
        {"x-extproc-priority": "P0"},
        {"content-type": "text/plain"},
        {"content-type": ""},
        {"x-request-id": "a b\tc"},
        {"x-stainless-read-timeout": "nan"},
        {"x-stainless-read-timeout": "-5"},
        {"accept-encoding": "zstd"},
    ],
)
async def test_odd_headers_harm_nobody(gateway: Gateway, headers: Mapping[str, str]) -> None:
    assert (await gateway.post(SHORT, headers=headers)).status < 500
    assert (await gateway.post(SHORT)).status == 200


async def test_header_bytes_that_are_not_utf_8_harm_nobody(gateway: Gateway) -> None:
    host, _, port = gateway.stack.gateway_address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(SHORT).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-priority: \xff\xfe\xe9\r\nx-odd: \xf0\x28\x8c\x28\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
    )
    await writer.drain()
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
async def test_what_is_not_inference_passes_untouched(gateway: Gateway, path: str) -> None:
    assert (await gateway.get(path)).status == 200


async def test_unknown_paths_and_methods_pass_and_hold_nothing(gateway: Gateway) -> None:
    assert (await gateway.post(SHORT, path="/v1/messages/count_tokens")).status == 404
    async with gateway.http.options(gateway.url + "/v1/chat/completions") as response:
        assert response.status < 500
    async with gateway.http.head(gateway.url + "/v1/models") as response:
        assert response.status < 500


async def test_afterwards_nothing_is_held_and_nothing_failed(gateway: Gateway) -> None:
    await gateway.until_pool({"in_use": 0, "waiting": 0})
    async with gateway.http.get(gateway.stack.admin_url + "/metrics") as response:
        text = await response.text()
    assert 'extproc_wire_events_total{event="handler-error"} 0.0' in text
    assert gateway.stack.children["extproc"].running
