"""The official OpenAI SDK as the client: served, streamed, refused and retried, refused for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from extproc.sim.stack import Stack, StackOptions
from tests.integration.test_watermark import force
from tests.support.gateway import Gateway, gateway_of

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def sdk(*, retries: int) -> AsyncIterator[tuple[openai.AsyncOpenAI, Gateway]]:
    options = StackOptions(
        policy="pools: [{name: main, controllers: [watermark], engines: {scrapeInterval: 50ms}}]\nretryAfter: {base: 1.3s}",
        engines=1,
        engine_args=("--speed", "20"),
    )
    async with Stack(options) as stack, gateway_of(stack) as gateway:
        base_url = stack.gateway_url + "/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=retries) as client:
            yield client, gateway


async def test_served_at_once_and_streamed() -> None:
    async with sdk(retries=0) as (client, _):
        answer = await client.chat.completions.create(model="llama-3-8b", messages=MESSAGES, max_tokens=8)
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 8
        stream = await client.chat.completions.create(
            model="llama-3-8b", messages=MESSAGES, max_tokens=8, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [chunk async for chunk in stream]
        assert sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].delta.content) == 8


async def test_several_prompts_and_embeddings_are_served() -> None:
    async with sdk(retries=0) as (client, gateway):
        completion = await client.completions.create(model="llama-3-8b", prompt=["one", "two"], n=3, max_tokens=4)
        assert [choice.index for choice in completion.choices] == list(range(6))
        embedded = await client.embeddings.create(model="llama-3-8b", input=["one", "two", "three"])
        assert [vector.index for vector in embedded.data] == [0, 1, 2]
        assert all(vector.embedding for vector in embedded.data)
        assert embedded.usage.prompt_tokens == 4
        assert (await gateway.pool())["priorities"]["P1"]["requests"] == {"admitted": 2}
        await gateway.until_pool({"in_use": 0, "waiting": 0})


async def test_refused_for_good_says_why() -> None:
    async with sdk(retries=0) as (client, gateway):
        await force(gateway, kv_usage=0.99)
        await gateway.until(lambda pool: pool["priorities"]["P1"]["rejection"] == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="llama-3-8b", messages=MESSAGES, max_tokens=1)
    error = caught.value
    assert "overloaded" in error.message
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert error.response.headers["x-extproc-reason"] == "overload"
    assert error.request_id


async def test_refused_and_retried_comes_back_when_told_and_is_served() -> None:
    async with sdk(retries=2) as (client, gateway):
        await force(gateway, kv_usage=0.99)
        refused: list[float] = []

        async def watch(response: object) -> None:
            headers = getattr(response, "headers", {})
            if getattr(response, "status_code", 0) == 429:
                refused.append(float(headers["retry-after-ms"]))
                await force(gateway, kv_usage=None)

        client._client.event_hooks["response"].append(watch)
        answers = [
            await client.chat.completions.create(model="llama-3-8b", messages=MESSAGES, max_tokens=1) for _ in range(20)
        ]
    assert len(refused) >= 1
    assert all(1000 <= ms <= 1600 for ms in refused)
    assert all(answer.choices for answer in answers)
