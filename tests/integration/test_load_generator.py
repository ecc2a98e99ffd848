"""The load generator over real sockets: it sends on time whatever the server does, and calls each end by its name."""

from __future__ import annotations

import asyncio

import pytest

from extproc.model import Priority
from extproc.sim.load import End, Observation, Target, offer
from extproc.sim.workload import Intended
from tests.support.scripted_server import Script, scripted_server

TOKEN = b'data: {"choices":[{"delta":{"content":" a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{"content":" z"},"finish_reason":"stop"}]}\n\n'
TAIL = LAST + b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(raw: bytes) -> Script:
    async def script(_head: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return script


async def never(_head: str, _body: bytes, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def request_at(at_s: float) -> Intended:
    return Intended(index=0, at_s=at_s, priority=Priority.P0, prompt_tokens=1, max_tokens=8, body=b'{"stream":true}')


async def observe(script: Script, *, patience_s: float = 5.0) -> Observation:
    async with scripted_server(script) as port:
        [seen] = await offer([request_at(0.0)], Target("127.0.0.1", port, patience_s=patience_s))
        return seen


async def test_a_whole_answer_is_completed_with_its_times() -> None:
    async def script(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        assert "x-priority: P0" in head
        assert body == b'{"stream":true}'
        writer.write(STREAM_HEAD + chunk(TOKEN))
        await asyncio.sleep(0.05)
        writer.write(chunk(TAIL) + b"0\r\n\r\n")
        await writer.drain()

    seen = await observe(script)
    assert (seen.end, seen.tokens, seen.status) == (End.COMPLETED, 2, 200)
    assert seen.ttft_s is not None
    assert seen.tpot_s is not None
    assert 0 <= seen.late_s <= seen.ttft_s < seen.ttft_s + 0.045 < seen.finished_s
    assert seen.tpot_s == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize(
    ("raw", "end", "why", "retry_after_s"),
    [
        (
            b"HTTP/1.1 429 X\r\nretry-after: 3\r\nretry-after-ms: 2250\r\ncontent-length: 0\r\n\r\n",
            End.REJECTED,
            "",
            2.25,
        ),
        (b"HTTP/1.1 503 X\r\nRetry-After: 3\r\ncontent-length: 2\r\n\r\n{}", End.REJECTED, "", 3.0),
        (b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n", End.FAILED, "status 429", None),
        (b"HTTP/1.1 429 X\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n", End.FAILED, "status 429", None),
        (b"HTTP/1.1 429 X\r\nretry-after: 1.5\r\ncontent-length: 0\r\n\r\n", End.FAILED, "status 429", None),
        (b"HTTP/1.1 500 X\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n", End.FAILED, "status 500", None),
        (STREAM_HEAD + chunk(TOKEN), End.FAILED, "the connection was cut", None),
        (STREAM_HEAD + chunk(TOKEN) + b"0\r\n\r\n", End.FAILED, "the stream was cut", None),
        (b"", End.FAILED, "the connection was cut", None),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", End.FAILED, "this is not HTTP", None),
    ],
)
async def test_every_other_end_has_a_name(raw: bytes, end: End, why: str, retry_after_s: float | None) -> None:
    seen = await observe(answer(raw))
    assert (seen.end, seen.why, seen.retry_after_s) == (end, why, retry_after_s)


async def test_patience_counts_from_the_intended_time_and_the_client_really_leaves() -> None:
    left = asyncio.Event()

    async def script(_head: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not writer.transport.is_closing():
            writer.write(chunk(b": ping\n\n"))
            await asyncio.sleep(0.01)
        left.set()

    seen = await observe(script, patience_s=0.3)
    assert (seen.end, seen.why) == (End.FAILED, "the client's patience ran out")
    assert seen.finished_s == pytest.approx(0.3, abs=0.1)
    assert seen.ttft_s is None


async def test_a_server_that_never_answers_delays_no_later_request() -> None:
    """The closed-loop trap: with a stuck server the generator must go on sending at the intended times."""
    requests = [request_at(index * 0.01) for index in range(50)]
    async with scripted_server(never) as port:
        seen = await offer(requests, Target("127.0.0.1", port, patience_s=1.0))
    assert len(seen) == 50
    assert max(observation.late_s for observation in seen) < 0.25
    assert {observation.why for observation in seen} == {"the client's patience ran out"}


async def test_nobody_listening_is_a_failed_request() -> None:
    async with scripted_server(never) as port:
        pass
    ended: list[Observation] = []
    seen = await offer([request_at(0.0)], Target("127.0.0.1", port), ended=ended.append)
    assert (seen[0].end, seen[0].status) == (End.FAILED, 0)
    assert ended == seen
