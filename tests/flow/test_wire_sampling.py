"""Which answers are sampled and what becomes of it, over the real spine in virtual time."""

from __future__ import annotations

import asyncio

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as official

from extproc.config import parse_policy
from extproc.model import Cost, End, Latency, Priority
from extproc.ports import WireEvent
from extproc.submission import Submission
from extproc.tickets import Ticket
from extproc.wire.codec import CONTINUE
from extproc.wire.events import Kind
from tests.flow.test_dispatcher import ALL_TAIL
from tests.flow.test_wire_stream import Driver, Exchange, flow, settle
from tests.support.pools import Pool, limited
from tests.support.virtual import virtual

STREAMED = processing_mode_pb2.ProcessingMode.STREAMED
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
GOES_BY_LATENCY = "envoy: {messageTimeout: 250ms}\npools: [{controllers: [vegas]}]\n"


def _driver(policy: str = GOES_BY_LATENCY) -> Driver:
    return Driver(limit=20, policy=parse_policy(policy))


async def _answering(
    driver: Driver, engine: str = "a:1", *, status: int = 200, kind: str = "text/event-stream"
) -> Exchange:
    """An admitted request whose response has begun."""
    exchange = await driver.occupy()
    message = official.ProcessingRequest()
    headers = message.response_headers.headers.headers
    headers.add(key=":status", raw_value=str(status).encode())
    headers.add(key="content-type", raw_value=kind.encode())
    message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = engine
    await exchange.send(message)
    assert exchange.last() == "response_headers"
    return exchange


def _sampled(exchange: Exchange) -> bool:
    reply = exchange.replies()[-1]
    return bool(reply.HasField("mode_override") and reply.mode_override.response_body_mode == STREAMED)


async def _chunk(exchange: Exchange, data: bytes = EVENT, *, last: bool = False) -> None:
    message = official.ProcessingRequest()
    message.response_body.body = data
    message.response_body.end_of_stream = last
    await exchange.send(message)
    assert exchange.call.written[-1] == CONTINUE[Kind.RESPONSE_BODY]


async def _answer(exchange: Exchange, *, first_after_s: float = 2.0, tokens: int = 11, token_s: float = 0.1) -> None:
    """Keep-alives, then tokens, then the end."""
    await _chunk(exchange, b": ping\n\n")
    await asyncio.sleep(first_after_s)
    await _chunk(exchange)
    for _ in range(tokens - 1):
        await asyncio.sleep(token_s)
        await _chunk(exchange)
    await _chunk(exchange, b"data: [DONE]\n\n", last=True)


def _latencies(driver: Driver) -> list[tuple[float | None, ...]]:
    taken = driver.spine.dispatcher.take_latencies()
    return [tuple(None if time_s is None else round(time_s, 6) for time_s in (one.ttft_s, one.tpot_s)) for one in taken]


@flow
async def test_a_sampled_answer_tells_its_times_when_it_has_ended() -> None:
    driver = _driver()
    exchange = await _answering(driver)
    assert _sampled(exchange)
    await _answer(exchange)
    assert _latencies(driver) == [], "the slot is still held"
    await asyncio.sleep(1)
    await exchange.eof()
    assert _latencies(driver) == [(2.0, 0.1)]
    assert driver.observer.events == {}
    assert driver.observer.ends == {End.COMPLETED: 1}


@flow
async def test_time_spent_waiting_for_admission_is_not_the_engines() -> None:
    driver = Driver(limit=1, policy=parse_policy(GOES_BY_LATENCY + ALL_TAIL))
    running = await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    await asyncio.sleep(5)
    await running.eof()
    await settle()
    message = official.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    message.response_headers.headers.headers.add(key="content-type", raw_value=b"text/event-stream; charset=utf-8")
    await waiter.send(message)
    await _answer(waiter)
    await waiter.eof()
    assert _latencies(driver)[-1] == (2.0, 0.1)


@flow
async def test_one_answer_per_engine_at_a_time_and_the_next_when_it_has_ended() -> None:
    driver = _driver()
    first, second, elsewhere = await _answering(driver), await _answering(driver), await _answering(driver, "b:2")
    assert [_sampled(one) for one in (first, second, elsewhere)] == [True, False, True]
    await _answer(first)
    assert not _sampled(second), "an answer under way cannot be switched"
    assert _sampled(await _answering(driver)), "free with the last chunk, before the stream is gone"
    await first.eof()
    await second.eof()
    assert _latencies(driver) == [(2.0, 0.1), (None, None)]


@flow
async def test_a_client_that_leaves_mid_sample_frees_the_place_and_leaves_no_sample() -> None:
    for leave in (Exchange.eof, Exchange.reset):
        driver = _driver()
        exchange = await _answering(driver)
        await asyncio.sleep(1)
        await _chunk(exchange)
        await leave(exchange)
        assert _latencies(driver) == [(None, None)]
        assert driver.spine.ghosts == 0
        assert _sampled(await _answering(driver))


@flow
async def test_trailers_end_a_sample_too() -> None:
    driver = _driver()
    exchange = await _answering(driver)
    await asyncio.sleep(1)
    await _chunk(exchange)
    message = official.ProcessingRequest()
    message.response_trailers.SetInParent()
    await exchange.send(message)
    await exchange.eof()
    assert _latencies(driver) == [(1.0, None)]


@flow
async def test_only_event_streams_that_succeed_are_sampled() -> None:
    driver = _driver()
    assert not _sampled(await _answering(driver, kind="application/json"))
    assert not _sampled(await _answering(driver, status=500))
    assert _sampled(await _answering(driver))


@flow
async def test_nothing_is_sampled_where_no_controller_goes_by_latency() -> None:
    driver = _driver("envoy: {messageTimeout: 250ms}\npools: [{controllers: [fixed, watermark, pid]}]")
    assert not _sampled(await _answering(driver))


@flow
async def test_nothing_is_asked_for_where_envoy_allows_no_override() -> None:
    driver = _driver()
    undecided = driver.open()
    await undecided.headers(length=40)
    await undecided.response()
    assert WireEvent.MODE_LACKS_BODY in driver.observer.events
    assert not _sampled(await _answering(driver))


@flow
async def test_chunks_that_never_come_leave_no_sample_and_free_the_place_with_the_stream() -> None:
    driver = _driver()
    exchange = await _answering(driver)
    assert _sampled(exchange)
    await asyncio.sleep(3)
    await exchange.eof()
    assert _latencies(driver) == [(None, None)]
    assert _sampled(await _answering(driver))


@flow
async def test_a_chunk_that_envoy_gave_up_in_a_stall_leaves_a_ghost() -> None:
    """Envoy goes on without us and the response runs on; the same stall harms no answer that is not sampled."""
    driver = _driver()
    sampled, other = await _answering(driver), await _answering(driver)
    await asyncio.sleep(1)
    driver.stall(1.0)
    await sampled.reset()
    await other.reset()
    assert driver.observer.ends == {End.GHOST: 1, End.COMPLETED: 1}


@virtual
async def test_what_finished_is_told_once_and_only_what_finished_by_itself() -> None:
    pool = Pool(limited(slots=9))
    for how in (End.COMPLETED, End.IGNORED, End.DROPPED, End.GHOST):
        pool.ticket().end(how)
    assert pool.dispatcher.take_latencies() == (Latency(0.0),)
    assert pool.dispatcher.take_latencies() == ()
    assert pool.dispatcher.demand(0.0).latencies == ()


@virtual
async def test_answers_in_several_sequences_are_not_worth_timing() -> None:
    """Their events come mixed: the time between two is not one sequence's."""
    pool = Pool(limited(slots=9), GOES_BY_LATENCY)
    several = pool.dispatcher.submit(Submission(Priority.P1, Cost(1, 1, sequences=2)))
    assert isinstance(several, Ticket)
    assert (pool.ticket().worth_timing, several.worth_timing) == (True, False)
