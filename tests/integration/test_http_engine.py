"""The fake engine's API as its clients meet it: the official OpenAI SDK, plain HTTP, a raw socket."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from extproc.sim.engine import Scheduling
from extproc.sim.http_engine import FakeEngine
from tests.support.fake_engine import IGNORE_EOS, MODEL, OPTIONS, eventually, long_chat, sdk

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(OPTIONS) as running:
        yield running


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(engine.url) as client:
        yield client


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


# -- the official SDK


async def test_a_streamed_chat_reads_as_openais(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_completion_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=IGNORE_EOS,
        extra_headers={"x-request-id": "abc"},
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-abc"}
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert len([delta for delta in deltas if delta.delta.content]) == 12
    assert [delta.finish_reason for delta in deltas] == [None] * 12 + ["length"]
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 12, 15)


async def test_streamed_or_not_the_same_request_has_the_same_answer(client: AsyncOpenAI) -> None:
    whole = [
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
        for text in ("one", "one", "two")
    ]
    lengths = [answer.usage.completion_tokens for answer in whole if answer.usage]
    assert lengths[0] == lengths[1] != lengths[2]
    assert whole[0].choices[0].finish_reason == "stop"
    assert len((whole[0].choices[0].message.content or "").split()) == lengths[0]


async def test_several_prompts_and_answers_in_one_completion(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["first", "second one"], n=2, max_tokens=5, extra_body=IGNORE_EOS
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 20)
    stream = await client.completions.create(
        model=MODEL, prompt=[[1, 2, 3], [4]], max_tokens=5, stream=True, extra_body=IGNORE_EOS
    )
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [len(text.split()) for text in texts] == [5, 5]


async def test_the_models_are_listed() -> None:
    async with FakeEngine(replace(OPTIONS, served_models=("other",))) as engine, sdk(engine.url) as client:
        assert [model.id async for model in client.models.list()] == [MODEL, "other"]
        answer = await client.chat.completions.create(model="other", messages=HELLO, max_tokens=1)
        assert answer.model == "other"


async def test_errors_are_those_the_sdk_knows(client: AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="`gpt-9` does not exist"):
        await client.chat.completions.create(model="gpt-9", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=400_000)
    with pytest.raises(openai.BadRequestError, match=r"\$\.max_tokens"):
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"max_tokens": "many"})
    assert (engine.counts.total, engine.counts.refused, engine.counts.open) == (3, 3, 0)


async def test_the_engines_own_cap_answers_503() -> None:
    async with FakeEngine(replace(OPTIONS, max_num_queued_reqs=1)) as engine, sdk(engine.url) as client:
        first = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, extra_body=IGNORE_EOS)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert refused.value.status_code == 503
        assert "retry-after" not in refused.value.response.headers
        await first.close()


# -- plain HTTP


@pytest.mark.parametrize(
    ("path", "content_type", "body", "status"),
    [
        ("/v1/chat/completions", "application/json", b"{nope", 400),
        ("/v1/chat/completions", "application/json", b"", 400),
        ("/v1/chat/completions", "text/plain", b"{}", 400),
        ("/v1/completions", "application/json", b"[" * 100_000, 400),
        ("/v1/audio/speech", "application/json", b"{}", 404),
        ("/v1/embeddings", "application/json", b"{}", 400),
        ("/health", "application/json", b"{}", 405),
        ("/engine/control", "application/json", b'{"kv_usage": 1.5}', 400),
        ("/engine/control", "application/json", b'{"kv": 1}', 400),
    ],
)
async def test_bad_input_is_answered_in_openais_shape(
    http: aiohttp.ClientSession, path: str, content_type: str, body: bytes, status: int
) -> None:
    async with http.post(path, data=body, headers={"content-type": content_type}) as response:
        assert response.status == status
        assert response.content_type == "application/json"
        error = (await response.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == status


async def test_a_body_of_ten_megabytes_is_served(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    body = io.BytesIO(json.dumps({"prompt": "x", "max_tokens": 1, "ignored": "y" * 10_000_000}).encode())
    async with http.post("/v1/completions", data=body, headers={"content-type": "application/json"}) as response:
        assert response.status == 200
    assert engine.counts.completed == 1


async def test_headers_come_at_once_and_the_first_data_with_the_first_token() -> None:
    """vLLM sends a stream's headers before anything is computed; here one sequence runs and the other waits."""
    async with (
        FakeEngine(replace(OPTIONS, max_num_seqs=1)) as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/chat/completions", json=long_chat(stream=True)) as running,
        http.post("/v1/chat/completions", json=long_chat(stream=True)) as waiting,
    ):
        await running.content.readline()
        assert waiting.status == 200
        assert waiting.headers["content-type"] == "text/event-stream; charset=utf-8"
        line = asyncio.ensure_future(waiting.content.readline())
        await eventually(lambda: engine.pacer.gauges.waiting == 1, 1.0)
        assert not line.done()
        running.close()
        assert b'"role":"assistant"' in await asyncio.wait_for(line, 5)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_cache_within_100_ms(
    http: aiohttp.ClientSession, engine: FakeEngine, stream: bool
) -> None:
    async def ask() -> None:
        async with http.post("/v1/chat/completions", json=long_chat(stream=stream)) as response:
            await response.read()

    asking = asyncio.ensure_future(ask())
    await eventually(lambda: engine.pacer.gauges.kv_usage > 0.04, 5.0)
    asking.cancel()
    assert await eventually(lambda: engine.pacer.gauges.kv_usage == 0.0, 1.0) < 0.1
    assert (engine.counts.open, engine.counts.aborts, engine.counts.resets) == (0, 1, int(stream))
    assert not engine.model.busy


async def test_a_client_that_leaves_the_waiting_line_is_gone() -> None:
    async with (
        FakeEngine(replace(OPTIONS, max_num_seqs=1)) as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/chat/completions", json=long_chat(stream=True)),
    ):
        async with http.post("/v1/chat/completions", json=long_chat(stream=True)):
            await eventually(lambda: engine.pacer.gauges.waiting == 1, 5.0)
        assert await eventually(lambda: engine.pacer.gauges.waiting == 0, 1.0) < 0.1
        assert engine.counts.open == 1


async def test_the_priority_header_beats_the_body_and_decides_who_runs_first() -> None:
    options = replace(OPTIONS, max_num_seqs=1, scheduling=Scheduling.PRIORITY)
    async with FakeEngine(options) as engine, aiohttp.ClientSession(engine.url) as http:
        order: list[str] = []

        async def ask(name: str, body: int, header: int | None) -> None:
            headers = {} if header is None else {"x-vllm-priority": str(header)}
            job = {"prompt": name, "max_tokens": 3, "ignore_eos": True, "priority": body}
            async with http.post("/v1/completions", json=job, headers=headers) as response:
                await response.read()
            order.append(name)

        async with asyncio.TaskGroup() as group:
            blocker = await http.post("/v1/chat/completions", json=long_chat(stream=True))
            await blocker.content.readline()
            for job in (("low", 0, 5), ("body", 3, None), ("high", 9, 1)):
                group.create_task(ask(*job))
            await eventually(lambda: engine.model.gauges().waiting == 3, 2.0)
            blocker.close()
        assert order == ["high", "body", "low"]


async def test_a_slow_reader_holds_nobody_up_and_loses_nothing() -> None:
    """It leaves its stream unread until the engine is through; the text arrives all the same, in larger events."""
    answers, tokens = 8, 8000
    async with FakeEngine(replace(OPTIONS, speed=200.0)) as engine, sdk(engine.url) as client:
        host, port = engine.url.removeprefix("http://").split(":")
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
        job = {"prompt": "x", "max_tokens": tokens, "n": answers, "ignore_eos": True, "stream": True}
        body = json.dumps(job).encode()
        head = f"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await eventually(lambda: engine.pacer.gauges.running == answers, 5.0)
        other = await client.completions.create(model=MODEL, prompt="y", max_tokens=200, extra_body=IGNORE_EOS)
        assert other.usage is not None
        assert other.usage.completion_tokens == 200
        await eventually(lambda: not engine.model.busy, 15.0)
        text = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
    events = [line.removeprefix(b"data: ") for line in text.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    said = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert len("".join(said).split()) == answers * tokens
    assert len(said) < answers * tokens, "what was held back came in larger events"
