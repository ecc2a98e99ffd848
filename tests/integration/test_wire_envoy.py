"""The wire against the real Envoy: what is admitted, refused, queued; what leaves, breaks and is held."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path

import brotli
import pytest

from extproc.model import End, Outcome
from extproc.ports import WireEvent
from extproc.wire.modes import ENDS_EARLY, NO_BODIES
from tests.integration.wire_stack import wire_stack
from tests.support.eventually import eventually
from tests.support.minimal_envoy import envoy_version

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio keeps to one loop per process
JSON_BODY = {"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]}


async def test_an_event_stream_holds_its_slot_to_its_end(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=2) as stack:
        call = stack.call("a", headers={"x-priority": "P0"})
        await eventually(lambda: "a" in stack.upstream.running)
        assert stack.spine.running == 1
        headers = stack.upstream.arrived["a"].headers
        assert headers["x-extproc-priority"] == "P1"
        assert "x-priority" not in headers
        stack.upstream.finish("a")
        assert (await call)[0] == 200
        await eventually(lambda: stack.spine.running == 0, within_s=0.5)
        assert stack.observer.ends == {End.COMPLETED: 1}
        assert stack.observer.events == {}
        assert await stack.access_log(1) == ["admitted P1 default 0 200"]


async def test_a_refusal_reaches_the_client_whole(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=1, queue_size=0) as stack:
        stack.call("running")
        await eventually(lambda: "running" in stack.upstream.running)
        status, body, headers = await stack.call("refused", headers={"x-request-id": "client-chosen-7"})
        assert status == 429
        assert headers["x-extproc-reason"] == "overload"
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert "refused" not in stack.upstream.arrived
        assert stack.spine.running == 1


async def test_a_body_is_asked_for_and_makes_the_cost(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=4) as stack:
        stack.call("body", json=JSON_BODY)
        await eventually(lambda: "body" in stack.upstream.running)
        tokens = sum(load.tokens for load in stack.spine.dispatcher.in_use)
        assert 7 < tokens < 60
        assert json.loads(stack.upstream.bodies["body"]) == JSON_BODY


@pytest.mark.parametrize("size", [1000, 3_000_000], ids=["fits", "larger than Envoy's buffer"])
async def test_a_chunked_body_reaches_the_engine_whole_and_costs_the_default(tmp_path: Path, size: int) -> None:
    """Asked for in part, one in thirty larger than Envoy's buffer never ended."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"max_tokens": 7, "prompt": "'
        for _ in range(0, size, 1000):
            yield b"x" * 1000
        yield b'"}'

    # This process also sends the 15 MB, and meanwhile answers nothing: Envoy is given the time that the shipped file gives it.
    async with wire_stack(tmp_path, limit=40, message_timeout="2s") as stack:
        names = [f"chunked-{i}" for i in range(5)]
        for name in names:
            stack.call(name, data=chunks(), headers={"content-type": "application/json"})
        await eventually(lambda: stack.upstream.running == set(names))
        assert {len(stack.upstream.bodies[name]) for name in names} == {size + 31}
        policy = stack.spine.policy.cost
        tokens = sum(load.tokens for load in stack.spine.dispatcher.in_use)
        assert tokens == len(names) * (policy.default_prompt_tokens + policy.default_output_tokens)


async def test_a_body_of_known_length_keeps_its_content_length(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=4) as stack:
        stack.call("body", json=JSON_BODY)
        await eventually(lambda: "body" in stack.upstream.running)
        assert int(stack.upstream.arrived["body"].headers["content-length"]) == len(json.dumps(JSON_BODY))


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("zstd", zstd.compress), ("br", brotli.compress), ("deflate", zlib.compress)],
)
async def test_a_compressed_body_is_costed_by_what_it_unfolds_to_and_reaches_the_engine_untouched(
    tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    body = pack(json.dumps({"model": "m", "max_tokens": 7, "prompt": "x" * 40_000}).encode())
    headers = {"content-type": "application/json", "content-encoding": encoding}
    async with wire_stack(tmp_path, limit=4) as stack:
        stack.call("packed", data=BytesIO(body), headers=headers)
        await eventually(lambda: "packed" in stack.upstream.running)
        assert sum(load.tokens for load in stack.spine.dispatcher.in_use) == 10_007
        assert stack.upstream.bodies["packed"] == body
        assert stack.upstream.arrived["packed"].headers["content-encoding"] == encoding
        assert int(stack.upstream.arrived["packed"].headers["content-length"]) == len(body)


async def test_a_compressed_bomb_costs_as_a_long_body_that_nobody_read_and_reaches_the_engine_untouched(
    tmp_path: Path,
) -> None:
    bomb = gzip.compress(b'{"prompt": "' + b"x" * (64 << 20) + b'"}', 1)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with wire_stack(tmp_path, limit=4) as stack:
        stack.call("bomb", data=BytesIO(bomb), headers=headers)
        await eventually(lambda: "bomb" in stack.upstream.running)
        assert sum(load.tokens for load in stack.spine.dispatcher.in_use) > (1 << 20) / 512
        assert stack.upstream.bodies["bomb"] == bomb


KEEPS_STREAMS = envoy_version() < (1, 40)
"""1.36 keeps an ext_proc stream to the end of its request, whatever the mode; 1.40 closes it once it has nothing to send."""


async def test_a_get_passes_and_holds_neither_slot_nor_stream(tmp_path: Path) -> None:
    async with wire_stack(tmp_path) as stack:
        stack.call("models", method="GET", path="/v1/models")
        await eventually(lambda: "models" in stack.upstream.running)
        if not KEEPS_STREAMS:
            await eventually(lambda: stack.service.streams == 0)
        assert stack.spine.running == 0
        assert stack.observer.outcomes == {Outcome.PASSED: 1}


@pytest.mark.parametrize("body", [None, JSON_BODY], ids=["headers", "body"])
async def test_a_queued_request_waits_longer_than_message_timeout(tmp_path: Path, body: object) -> None:
    async with wire_stack(tmp_path, limit=1) as stack:
        stack.call("first")
        await eventually(lambda: "first" in stack.upstream.running)
        queued = stack.call("second", json=body)
        await eventually(lambda: stack.spine.waiting == 1)
        await asyncio.sleep(0.4)  # longer than Envoy's message_timeout of 0.25 s: the override must hold
        assert stack.spine.waiting == 1
        assert "second" not in stack.upstream.arrived
        stack.upstream.finish("first")
        stack.upstream.finish("second")
        assert (await queued)[0] == 200
        assert stack.upstream.most_running == 1
        outcome, _, _, waited_ms, _ = (await stack.access_log(2))[1].split()
        assert outcome == "admitted"
        assert int(waited_ms) >= 400


@pytest.mark.parametrize("graceful", [False, True], ids=["reset", "half-close"])
async def test_a_client_that_leaves_while_queued_is_gone_at_once(tmp_path: Path, graceful: bool) -> None:
    async with wire_stack(tmp_path, limit=1, graceful=graceful) as stack:
        stack.call("running")
        await eventually(lambda: "running" in stack.upstream.running)
        leaver = stack.call("leaver")
        await eventually(lambda: stack.spine.waiting == 1)
        leaver.cancel()
        await eventually(lambda: stack.spine.waiting == 0, within_s=0.3)
        assert stack.spine.ghosts == 0
        assert stack.observer.outcomes[Outcome.CLIENT_GONE] == 1
        assert "leaver" not in stack.upstream.arrived


@pytest.mark.parametrize("graceful", [False, True], ids=["reset", "half-close"])
async def test_a_client_that_leaves_mid_stream_frees_its_slot_and_the_engine(tmp_path: Path, graceful: bool) -> None:
    async with wire_stack(tmp_path, limit=1, graceful=graceful) as stack:
        leaver = stack.call("leaver")
        await eventually(lambda: "leaver" in stack.upstream.running)
        await eventually(lambda: stack.spine.running == 1)
        leaver.cancel()
        await eventually(lambda: stack.spine.running == 0, within_s=0.3)
        await eventually(lambda: "leaver" in stack.upstream.reset)
        assert stack.spine.ghosts == 0


async def test_a_cut_connection_turns_what_runs_and_what_waits_into_ghost_load(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=2, relayed=True) as stack:
        for name in ("a", "b"):
            stack.call(name)
        await eventually(lambda: stack.upstream.running == {"a", "b"})
        waiting = stack.call("c")
        await eventually(lambda: stack.spine.waiting == 1)
        assert stack.relay is not None
        stack.relay.cut()
        await eventually(lambda: stack.service.streams == 0)
        # Envoy lets all three go on without us: the two that ran and the one that waited.
        await eventually(lambda: stack.upstream.running == {"a", "b", "c"})
        assert (stack.spine.running, stack.spine.waiting) == (0, 0)
        assert stack.spine.ghosts == pytest.approx(3, abs=0.1)
        assert stack.observer.events[WireEvent.CONNECTION_LOST] == 1
        for name in ("a", "b", "c"):
            stack.upstream.finish(name)
        assert (await waiting)[0] == 200


async def test_the_only_stream_of_a_cut_connection_is_told_from_a_stream_that_ended(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=2, relayed=True) as stack:
        stack.call("a")
        await eventually(lambda: "a" in stack.upstream.running)
        stack.upstream.finish("a")
        await eventually(lambda: stack.spine.running == 0)
        assert stack.observer.ends == {End.COMPLETED: 1}
        stack.call("b")
        await eventually(lambda: "b" in stack.upstream.running)
        assert stack.relay is not None
        stack.relay.cut()
        await eventually(lambda: stack.observer.ends[End.GHOST] == 1)


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=1, listen=f"unix:{tmp_path}/wire.sock") as stack:
        call = stack.call("a", json=JSON_BODY)
        await eventually(lambda: "a" in stack.upstream.running)
        assert stack.spine.running == 1
        stack.upstream.finish("a")
        assert (await call)[0] == 200
        await eventually(lambda: stack.observer.ends == {End.COMPLETED: 1})


async def test_an_answer_of_an_earlier_filter_is_no_request(tmp_path: Path) -> None:
    async with wire_stack(tmp_path) as stack:
        status, _, _ = await stack.call("early", headers={"x-envoy-fault-abort-request": "418"})
        assert status == 418
        await eventually(lambda: stack.service.streams == 0)
        assert stack.observer.outcomes == {}
        assert stack.observer.events == {}


async def test_header_bytes_that_are_not_utf8_harm_nobody(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=4) as stack:
        host, _, port = stack.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions?short=1 HTTP/1.1\r\nhost: x\r\nx-odd: caf\xe9\r\ncontent-length: 0\r\n\r\n"
        )
        assert b"200 OK" in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert stack.observer.events[WireEvent.HANDLER_ERROR] == 0


async def test_a_filter_that_allows_no_override_is_found_out_by_its_behaviour(tmp_path: Path) -> None:
    wrong = {NO_BODIES} if KEEPS_STREAMS else {NO_BODIES, ENDS_EARLY}
    async with wire_stack(tmp_path, limit=500, allow_override=False, response_trailers="SKIP") as stack:
        for number in range(200):  # on a busy machine some streams take too long to count
            stack.call(f"s{number}", json=JSON_BODY if number == 0 else None)
            await eventually(lambda: len(stack.upstream.running) == number + 1)  # noqa: B023
            if number >= 25 and set(stack.server.warnings) == wrong:
                break
        else:
            pytest.fail(f"only found out: {stack.server.warnings}")


async def test_stopping_leaves_nothing_held(tmp_path: Path) -> None:
    async with wire_stack(tmp_path, limit=1) as stack:
        stack.call("running")
        await eventually(lambda: "running" in stack.upstream.running)
        queued = stack.call("queued")
        await eventually(lambda: stack.spine.waiting == 1)
        await stack.server.drain()
        stack.spine.admission.drain()
        status, _, headers = await queued
        assert (status, headers["x-extproc-reason"]) == (503, "draining")
        await stack.server.stop(0.05)
        assert (stack.spine.running, stack.service.streams) == (0, 0)
        assert stack.observer.ends == {End.GHOST: 1}
        assert "running" in stack.upstream.running
