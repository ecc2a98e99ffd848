"""What the fake engine shows and takes beside its API: vLLM's metrics, forced gauges, faults, counters, its stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from extproc.errors import CannotListen
from extproc.sim.http_engine import BadEngineOptions, FakeEngine, serve_engine
from tests.support.fake_engine import IGNORE_EOS, MODEL, OPTIONS, eventually, long_chat, sdk


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


# -- metrics


async def scrape(http: aiohttp.ClientSession, path: str = "/metrics") -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, read by an independent parser."""
    async with http.get(path) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(await response.text()):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return samples


async def test_metrics_are_vllms(client: AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    for _ in range(3):
        await client.completions.create(model=MODEL, prompt="hello there", max_tokens=8, extra_body=IGNORE_EOS)
    samples = await scrape(http)
    own = {"engine": "0", "model_name": MODEL}
    assert samples["vllm:num_requests_running"] == [(own, 0.0)]
    assert samples["vllm:kv_cache_usage_perc"] == [(own, 0.0)]
    assert samples["vllm:prompt_tokens_total"] == [(own, 9.0)]
    assert samples["vllm:generation_tokens_total"] == [(own, 24.0)]
    assert ({**own, "reason": "capacity"}, 0.0) in samples["vllm:num_requests_waiting_by_reason"]
    assert ({**own, "finished_reason": "length"}, 3.0) in samples["vllm:request_success_total"]
    info = samples["vllm:cache_config_info"][0][0]
    assert (info["kv_cache_size_tokens"], info["block_size"], info["num_gpu_blocks"]) == ("400000", "16", "25000")
    for name, count in (
        ("vllm:time_to_first_token_seconds", 3),
        ("vllm:inter_token_latency_seconds", 21),
        ("vllm:request_queue_time_seconds", 3),
        ("vllm:iteration_tokens_total", 24),
    ):
        buckets = [value for _, value in samples[f"{name}_bucket"]]
        assert buckets == sorted(buckets)
        assert buckets[-1] == samples[f"{name}_count"][0][1] == count
        assert samples[f"{name}_bucket"][-1][0] == {**own, "le": "+Inf"}
    assert samples["vllm:iteration_tokens_total_sum"][0][1] == 9 + 24
    assert 0.005 < samples["vllm:time_to_first_token_seconds_sum"][0][1] < 1.0


async def test_the_filter_works_with_the_slash_and_only_there(http: aiohttp.ClientSession) -> None:
    asked = "name[]=vllm:kv_cache_usage_perc&name[]=vllm:num_preemptions_total&name[]=vllm:num_preemptions"
    asked += "&name[]=vllm:inter_token_latency_seconds_sum&name[]=vllm:time_to_first_token_seconds"
    assert set(await scrape(http, f"/metrics/?{asked}")) == {
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:inter_token_latency_seconds_sum",
    }
    assert len(await scrape(http, f"/metrics?{asked}")) > 40
    assert len(await scrape(http, "/metrics/")) > 40


# -- what no real engine has


async def control(http: aiohttp.ClientSession, **change: object) -> None:
    async with http.post("/engine/control", json=change) as response:
        assert response.status == 200


async def gauge(http: aiohttp.ClientSession, name: str) -> float:
    return (await scrape(http, f"/metrics/?name[]=vllm:{name}"))[f"vllm:{name}"][0][1]


async def test_gauges_can_be_forced_and_freed(http: aiohttp.ClientSession) -> None:
    await control(http, kv_usage=0.95, waiting=31)
    assert await gauge(http, "kv_cache_usage_perc") == 0.95
    assert await gauge(http, "num_requests_waiting") == 31
    await control(http, kv_usage=None)
    assert await gauge(http, "kv_cache_usage_perc") == 0.0
    assert await gauge(http, "num_requests_waiting") == 31


async def test_frozen_metrics_stand_still_while_the_engine_runs(
    client: AsyncOpenAI, http: aiohttp.ClientSession
) -> None:
    await control(http, freeze_metrics=True)
    await client.completions.create(model=MODEL, prompt="x", max_tokens=4, extra_body=IGNORE_EOS)
    assert await gauge(http, "generation_tokens_total") == 0
    await control(http, freeze_metrics=False)
    assert await gauge(http, "generation_tokens_total") == 4


async def test_faults_on_demand(client: AsyncOpenAI, http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    await control(http, fail="500")
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model=MODEL, prompt="x")
    await control(http, fail="hang")
    hanging = asyncio.ensure_future(client.completions.create(model=MODEL, prompt="x", max_tokens=2))
    await eventually(lambda: engine.counts.open == 1, 2.0)
    async with http.get("/health") as response:
        assert response.status == 200
    assert not hanging.done()
    await control(http, fail=None)
    assert (await hanging).choices[0].text


async def test_stats_count_and_a_reset_gives_everything_up(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async def stats() -> dict[str, object]:
        async with http.get("/engine/stats") as response:
            answer: dict[str, object] = await response.json()
            return answer

    async with (
        http.post("/v1/chat/completions", json=long_chat(stream=True)) as one,
        http.post("/v1/chat/completions", json=long_chat(stream=True)) as two,
    ):
        await one.content.readline()
        await two.content.readline()
        seen = await stats()
        assert (seen["open"], seen["max_open"], seen["total"], seen["running"]) == (2, 2, 2, 2)
        async with http.post("/engine/reset") as response:
            assert response.status == 200
        text = await one.text()
        assert '"finish_reason":"abort"' in text
        assert text.endswith("data: [DONE]\n\n")
    await eventually(lambda: not engine.model.busy and engine.counts.open == 0, 2.0)
    seen = await stats()
    assert (seen["total"], seen["aborts"], seen["generation_tokens"], seen["kv_usage"]) == (0, 0, 0, 0.0)


async def test_stopping_truncates_answers_as_vllm_does() -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_engine(OPTIONS, ready=ready.set_result, stop=stop))
        url: str = await ready
        async with aiohttp.ClientSession(url) as http:
            whole = asyncio.ensure_future(answer(http, long_chat()))
            async with http.post("/v1/chat/completions", json=long_chat(stream=True)) as response:
                await response.content.readline()
                stop.set()
                assert '"finish_reason":"abort"' in await response.text()
            assert json.loads(await whole)["choices"][0]["finish_reason"] == "abort"


async def answer(http: aiohttp.ClientSession, body: dict[str, object]) -> str:
    async with http.post("/v1/chat/completions", json=body) as response:
        return await response.text()


async def test_an_address_that_cannot_be_listened_on_is_named(engine: FakeEngine) -> None:
    taken = engine.url.removeprefix("http://")
    with pytest.raises(CannotListen, match=f"--listen: cannot listen on {taken}: Address already in use"):
        await serve_engine(replace(OPTIONS, listen=taken))
    for wrong in ("127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999"):
        with pytest.raises(CannotListen, match=f"cannot listen on {wrong}: expected host:port"):
            await serve_engine(replace(OPTIONS, listen=wrong))


async def test_sizes_that_cannot_work_are_named() -> None:
    with pytest.raises(BadEngineOptions, match="chunk not below max_num_seqs"):
        await serve_engine(replace(OPTIONS, chunk=8))
