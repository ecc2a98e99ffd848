"""Tenants through a real Envoy: keys, 401, what engines see, metadata, and nothing secret anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import openai
import pytest
import yaml

from extproc.files import envoy_yaml
from extproc.sim.stack import Stack, StackOptions
from tests.support import valkey
from tests.support.counting_engine import CountingEngine, counting_engine
from tests.support.gateway import CHAT, Gateway, gateway_of

KEY = "sk-the-clients-own-secret"
UPSTREAM_KEY = "sk-the-engines-secret"
DIGEST = sha256(KEY.encode()).hexdigest()
POOL = "pools: [{name: main, engines: {static: []}, upstreamAuth: %s}]\n"
TENANTS = f'tenants: [{{name: team-a, priority: P0, keys: ["sha256:{DIGEST}"]}}]\n'


@asynccontextmanager
async def gateway(
    policy: str, *, envoy: str | None = None, replicas: int = 1, serve: tuple[str, ...] = ()
) -> AsyncIterator[tuple[CountingEngine, Gateway]]:
    async with counting_engine(0.01) as engine:
        options = StackOptions(
            policy=policy, engine_addresses=(engine.address,), envoy_yaml=envoy, replicas=replicas, serve_args=serve
        )
        async with Stack(options) as stack, gateway_of(stack) as client:
            yield engine, client


async def test_who_has_no_key_is_401_in_the_sdks_own_words() -> None:
    async with gateway(POOL % "keep" + TENANTS + "auth: required") as (engine, client):
        for key in (KEY, "sk-wrong"):
            async with openai.AsyncOpenAI(base_url=client.url + "/v1", api_key=key) as sdk:
                create = sdk.chat.completions.create
                messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
                if key == KEY:
                    async for _ in await create(model="x", messages=messages, stream=True):
                        pass
                    continue
                with pytest.raises(openai.AuthenticationError) as caught:
                    await create(model="x", messages=messages)
                assert caught.value.response.headers["x-extproc-reason"] == "unauthenticated"
                assert "retry-after" not in caught.value.response.headers
        assert (await client.get("/v1/models")).status == 200
    assert [seen["x-extproc-priority"] for seen in engine.headers if "x-extproc-priority" in seen] == ["P0"]


@pytest.mark.parametrize(
    ("upstream_auth", "seen"),
    [("keep", f"Bearer {KEY}"), ("strip", None), ("env:ENGINE_KEY", f"Bearer {UPSTREAM_KEY}")],
)
async def test_what_engines_see_of_credentials_and_identity(
    upstream_auth: str, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", UPSTREAM_KEY)
    policy = POOL % upstream_auth + TENANTS + "trust: {headers: [x-tenant-id, x-priority]}"
    async with gateway(policy) as (engine, client):
        headers = {"authorization": f"Bearer {KEY}", "x-tenant-id": "team-a", "x-priority": "P0"}
        assert (await client.post(headers=headers)).status == 200
        pages = [await client.admin(path) for path in ("/policy", "/state", "/metrics", "/readyz")]
        log = client.stack.children["extproc"].log.read_text()
    [headers_seen] = engine.headers
    assert headers_seen.get("authorization") == seen
    assert not {"x-tenant-id", "x-priority"} & set(headers_seen)
    for text in (*pages, log):
        assert KEY not in text
        assert UPSTREAM_KEY not in text
        assert DIGEST not in text


async def test_a_variable_that_is_not_set_is_said_at_the_start() -> None:
    from extproc.sim.stack import StackError

    with pytest.raises(StackError, match="environment variable NOT_SET_ANYWHERE is not set"):
        async with gateway(POOL % "env:NOT_SET_ANYWHERE"):
            pytest.fail("it must not come up")


async def test_envoys_metadata_names_the_tenant() -> None:
    """The namespace of `jwt_authn`, written here by the filter that sets metadata from a header."""
    config = yaml.safe_load(envoy_yaml())
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    to_metadata = {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                {
                    "header": "x-claim",
                    "on_header_present": {"metadata_namespace": "envoy.filters.http.jwt_authn", "key": "sub"},
                    "remove": True,
                }
            ],
        },
    }
    manager["http_filters"].insert(0, to_metadata)
    policy = POOL % "keep" + (
        "auth: required\ntenants: [{name: claimed, priority: P0}]\ntrust: {tenantMetadata: {path: [sub]}}"
    )
    async with gateway(policy, envoy=yaml.safe_dump(config)) as (engine, client):
        assert (await client.post()).status == 401
        assert (await client.post(headers={"x-claim": "claimed"})).status == 200
    assert engine.headers[0]["x-extproc-priority"] == "P0"


async def test_an_anthropic_client_hears_401_in_its_own_shape() -> None:
    async with gateway(POOL % "keep" + TENANTS + "auth: required") as (_, client):
        reply = await client.post(json.dumps(CHAT).encode(), path="/v1/messages", headers={"x-api-key": "wrong"})
    assert reply.status == 401
    assert reply.json["error"]["type"] == "authentication_error"


async def test_a_tenant_above_its_quota_hears_429_and_when_it_has_refilled_and_others_go_on() -> None:
    quota = TENANTS.replace("priority: P0", "quota: {requestsPerMinute: 2}")
    async with gateway(POOL % "keep" + quota) as (engine, client):
        key = {"authorization": f"Bearer {KEY}"}
        replies = [await client.post(headers=key) for _ in range(3)]
        assert (await client.post()).status == 200
        [tenant] = (await client.state())["tenants"]
        metrics = await client.admin("/metrics")
    assert [reply.status for reply in replies] == [200, 200, 429]
    refused = replies[-1]
    assert refused.headers["x-extproc-reason"] == "quota"
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert len(engine.headers) == 3
    assert (tenant["name"], tenant["tokens_per_minute"], tenant["requests_per_minute"]) == ("team-a", None, 2.0)
    assert 0 <= tenant["requests_left"] < 1
    assert 'extproc_requests_total{outcome="quota",pool="main",priority="P1"} 1.0' in metrics


async def test_a_quota_is_one_over_all_replicas(tmp_path: Path) -> None:
    quota = "tenants: [{name: default, quota: {requestsPerMinute: 20}}]\n"
    with valkey.running(tmp_path, port=valkey.free_port()) as store:
        async with gateway(POOL % "keep" + quota, replicas=2, serve=("--redis-url", store.url)) as (engine, client):
            start = asyncio.get_running_loop().time()
            replies = [await client.post() for _ in range(60)]
            took_s = asyncio.get_running_loop().time() - start
            states = [await client.http.get(f"{url}/state") for url in client.stack.admin_urls.values()]
            left = [(await state.json())["tenants"][0]["requests_left"] for state in states]
    served = [reply.status for reply in replies].count(200)
    refilled, most_unheard = took_s * 20 / 60, 10
    assert 20 <= served <= 20 + refilled + most_unheard, "the rest goes by in the 0.1 s between two calls"
    assert len(engine.headers) == served
    assert max(left) < 2
    assert {reply.headers["x-extproc-reason"] for reply in replies if reply.status != 200} == {"quota"}
