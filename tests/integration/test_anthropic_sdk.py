"""The official Anthropic SDK as the client: served, streamed, refused and retried, refused for good; and what it tells
of its patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import pytest
from anthropic.types import MessageParam

from extproc.sim.stack import Stack, StackOptions
from tests.integration.test_watermark import force
from tests.support.gateway import CHAT, Gateway, gateway_of

MESSAGES: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
MODEL = "llama-3-8b"
POLICY = "pools: [{name: main, controllers: [watermark], engines: {scrapeInterval: 50ms}}]\nretryAfter: {base: 1.3s}"


@asynccontextmanager
async def sdk(
    *, retries: int, policy: str = POLICY, speed: float = 20
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Gateway]]:
    options = StackOptions(policy=policy, engines=1, engine_args=("--speed", str(speed)))
    async with (
        Stack(options) as stack,
        gateway_of(stack) as gateway,
        anthropic.AsyncAnthropic(base_url=stack.gateway_url, api_key="none", max_retries=retries) as client,
    ):
        yield client, gateway


async def test_served_at_once_and_streamed() -> None:
    async with sdk(retries=0) as (client, gateway):
        answer = await client.messages.create(model=MODEL, max_tokens=8, system="Be brief.", messages=MESSAGES)
        assert answer.content[0].type == "text"
        assert answer.content[0].text
        assert 1 <= answer.usage.output_tokens <= 8
        async with client.messages.stream(
            model=MODEL, max_tokens=8, messages=MESSAGES, extra_body={"ignore_eos": True}
        ) as stream:
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        assert len("".join(texts).split()) == 8
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 8)
        await gateway.until_pool({"in_use": 0, "waiting": 0})


async def test_refused_for_good_says_why() -> None:
    async with sdk(retries=0) as (client, gateway):
        await force(gateway, kv_usage=0.99)
        await gateway.until(lambda pool: pool["priorities"]["P1"]["rejection"] == 1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES)
    error = caught.value
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == "rate_limit_error"
    assert "overloaded" in error.body["error"]["message"]
    assert error.response.headers["x-extproc-reason"] == "overload"


async def test_refused_and_retried_comes_back_when_told_and_is_served() -> None:
    async with sdk(retries=2) as (client, gateway):
        await force(gateway, kv_usage=0.99)
        await gateway.until(lambda pool: pool["priorities"]["P1"]["rejection"] == 1)
        refused: list[float] = []

        async def watch(response: object) -> None:
            headers = getattr(response, "headers", {})
            if getattr(response, "status_code", 0) == 429:
                refused.append(float(headers["retry-after-ms"]))
                await force(gateway, kv_usage=None)

        client._client.event_hooks["response"].append(watch)
        answer = await client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES)
    assert len(refused) == 1
    assert 1000 <= refused[0] <= 1600
    assert answer.content


async def test_a_wait_ends_before_the_sdk_gives_up_and_the_engine_never_hears_of_it() -> None:
    policy = "pools: [{name: main, controllers: [fixed], fixed: {limit: {requests: 1}}}]"
    async with sdk(retries=0, policy=policy, speed=0.2) as (client, gateway):
        running = asyncio.ensure_future(gateway.post({**CHAT, "max_tokens": 1000, "ignore_eos": True}))
        await gateway.until_pool({"in_use": 1})
        try:
            with pytest.raises(anthropic.RateLimitError) as caught:
                await client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES, timeout=2.0)
            assert caught.value.response.headers["x-extproc-reason"] == "deadline"
            async with gateway.http.get(f"{gateway.stack.engine_urls[0]}/engine/stats") as response:
                assert (await response.json())["total"] == 1
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
