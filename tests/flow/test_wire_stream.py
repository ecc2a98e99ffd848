"""One stream from its first message to its end, over the real spine in virtual time. message_timeout is 0.25 s."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as official

from extproc.admission import Candidate, Pass
from extproc.clock import LoopClock
from extproc.config import Policy
from extproc.model import End, Outcome, Rejection
from extproc.ports import WireEvent
from extproc.request import HeaderChanges, RequestHead
from extproc.sim.virtual_time import VirtualTimeLoop, run_virtual
from extproc.tickets import Ticket, Waiting
from extproc.wire.ext_proc import ExtProcService
from extproc.wire.modes import IGNORES_OVERRIDE, NO_BODIES
from extproc.wire.shared import Gate
from extproc.wire.stream import OVERRIDE_MARGIN_S
from tests.support.observing import Remembering
from tests.support.spine import Spine, tail_queues

MODEL_CALL = ((":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json"))


class FakeCall:
    """What grpc gives a handler: messages to read, an end, and a place to write."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[object] = asyncio.Queue()
        self.written: list[bytes] = []
        self.broken = False

    async def read(self) -> object:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        if self.broken:
            raise grpc.aio.InternalError("the call is over")
        self.written.append(message)

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


class Driver:
    """A service over a spine, and Envoy's part in a stream."""

    def __init__(
        self, *, limit: int = 1, timeout: str = "8s", gate: Gate | None = None, policy: Policy | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        clock = LoopClock(self.loop)
        self.observer = Remembering()
        policy = policy or tail_queues(50, timeout=timeout)
        self.spine = Spine(limit=limit, clock=clock, observer=self.observer, policy=policy)
        self.gate: Gate = gate or self.spine.admission
        self.service = ExtProcService(
            lambda: self.gate, observer=self.observer, clock=clock, envoy=lambda: self.spine.policy.envoy
        )
        self.service.start()

    def through(self, gate: Gate) -> None:
        """For streams to come."""
        self.gate = gate

    def open(self) -> Exchange:
        return Exchange(self.service)

    def stall(self, seconds: float) -> None:
        """The process does not run for so long."""
        assert isinstance(self.loop, VirtualTimeLoop)
        self.loop.stall(seconds)

    async def occupy(self) -> Exchange:
        """A request that runs and fills the pool."""
        exchange = self.open()
        await exchange.headers(length=0)
        assert exchange.last() == "request_headers"
        return exchange


class Exchange:
    """One stream as Envoy sees it."""

    def __init__(self, service: ExtProcService) -> None:
        self.call = FakeCall()
        self.task = asyncio.ensure_future(service._process(None, self.call))

    async def send(self, message: official.ProcessingRequest) -> None:
        self.call.incoming.put_nowait(message.SerializeToString())
        await settle()

    async def headers(self, *, length: int | None = 0, protocol: dict[str, Any] | None = None) -> None:
        message = official.ProcessingRequest()
        for key, value in MODEL_CALL + (() if length is None else (("content-length", str(length)),)):
            message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
        if protocol is not None:
            message.protocol_config.SetInParent()
            message.observability_mode = protocol.pop("observing", False)
            for name, value in protocol.items():
                setattr(message.protocol_config, name, value)
        await self.send(message)

    async def body(self, data: bytes) -> None:
        message = official.ProcessingRequest()
        message.request_body.body = data
        await self.send(message)

    async def response(self, status: int = 200) -> None:
        message = official.ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
        await self.send(message)

    async def eof(self) -> None:
        self.call.incoming.put_nowait(grpc.aio.EOF)
        await settle()

    async def reset(self) -> None:
        """As grpc does it: the read under way ends, then the handler is cancelled."""
        self.call.incoming.put_nowait(grpc.aio.EOF)
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.task.cancelled(), "cancellation must go through, or grpc leaks the call"

    def replies(self) -> list[official.ProcessingResponse]:
        return [official.ProcessingResponse.FromString(data) for data in self.call.written]

    def last(self) -> str | None:
        which = self.replies()[-1].WhichOneof("response")
        return None if which is None else str(which)


async def settle() -> None:
    """Lets everything run that is ready, without moving the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


def flow(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs the test in virtual time and lets no stream be left over."""

    def run() -> None:
        async def main() -> None:
            await test()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        run_virtual(main())

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


@flow
async def test_a_request_holds_its_slot_as_long_as_its_stream() -> None:
    driver = Driver()
    exchange = await driver.occupy()
    await exchange.response()
    assert driver.spine.running == 1
    await exchange.eof()
    assert (driver.spine.running, driver.observer.ends) == (0, {End.COMPLETED: 1})


@flow
async def test_a_failed_response_is_dropped() -> None:
    driver = Driver()
    exchange = await driver.occupy()
    await exchange.response(503)
    await exchange.eof()
    assert driver.observer.ends == {End.DROPPED: 1}


@flow
async def test_a_client_that_leaves_before_any_response_is_ignored() -> None:
    driver = Driver()
    exchange = await driver.occupy()
    await exchange.reset()
    assert driver.observer.ends == {End.IGNORED: 1}
    assert driver.observer.events == {WireEvent.CLIENT_GONE: 1}
    assert driver.spine.ghosts == 0


@flow
async def test_waiting_sends_one_override_and_then_the_verdict() -> None:
    driver = Driver(timeout="8s")
    running = await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    assert waiter.replies()[0].override_message_timeout.ToSeconds() == 8 + OVERRIDE_MARGIN_S
    assert len(waiter.call.written) == 1
    await asyncio.sleep(2)
    await running.eof()
    await settle()
    assert waiter.last() == "request_headers"
    facts = waiter.replies()[-1].dynamic_metadata["extproc"]
    assert (facts["outcome"], facts["waited_ms"]) == ("admitted", 2000)
    assert driver.spine.running == 1


class SoonGate:
    """Every wait is one for a word that is on its way, as over a network."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.arrive = gate.arrive
        self.header_changes = gate.header_changes

    def decide(self, candidate: Candidate, body: bytes | None) -> Ticket | Waiting | Rejection | Pass:
        answer = self.gate.decide(candidate, body)
        if isinstance(answer, Waiting):
            answer.soon = True
        return answer


@flow
async def test_a_verdict_that_is_on_its_way_costs_no_other_message() -> None:
    driver = Driver()
    running = await driver.occupy()
    driver.through(SoonGate(driver.spine.admission))
    waiter = driver.open()
    await waiter.headers()
    await asyncio.sleep(0.02)  # a long round trip to the shared state; Envoy waits 250 ms
    await running.eof()
    await settle()
    assert waiter.last() == "request_headers"
    assert len(waiter.call.written) == 1


@flow
async def test_a_verdict_that_does_not_come_soon_after_all_gets_envoys_patience() -> None:
    driver = Driver()
    await driver.occupy()
    driver.through(SoonGate(driver.spine.admission))
    waiter, leaver = driver.open(), driver.open()
    await waiter.headers()
    await leaver.headers()
    await leaver.eof()
    await asyncio.sleep(0.03)
    assert waiter.replies()[0].override_message_timeout.ToSeconds() == 8 + OVERRIDE_MARGIN_S
    assert (driver.spine.waiting, leaver.call.written) == (1, [])


@flow
async def test_a_wait_that_times_out_is_answered_before_envoy_gives_up() -> None:
    driver = Driver(timeout="8s")
    await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    await asyncio.sleep(8.01)
    reply = waiter.replies()[-1]
    assert reply.immediate_response.status.code == 429
    assert reply.dynamic_metadata["extproc"]["waited_ms"] == 8000


@flow
async def test_a_queued_client_that_leaves_is_gone_from_the_queue_when_envoy_only_half_closes() -> None:
    driver = Driver()
    await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    assert driver.spine.waiting == 1
    await waiter.eof()
    assert (driver.spine.waiting, driver.spine.ghosts) == (0, 0)
    assert driver.observer.outcomes[Outcome.CLIENT_GONE] == 1


@flow
async def test_a_queued_client_that_leaves_is_gone_from_the_queue_when_envoy_resets() -> None:
    driver = Driver()
    await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    await waiter.reset()
    assert (driver.spine.waiting, driver.spine.ghosts) == (0, 0)


@flow
async def test_a_client_that_leaves_near_the_end_of_its_wait_leaves_no_ghost() -> None:
    driver = Driver(timeout="15s")
    await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    await asyncio.sleep(14.5)
    await waiter.reset()
    assert (driver.spine.waiting, driver.spine.ghosts) == (0, 0)


@flow
async def test_a_wait_that_outlived_envoys_timer_in_a_stall_becomes_ghost_load() -> None:
    driver = Driver(timeout="8s")
    await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    driver.stall(8 + OVERRIDE_MARGIN_S + 0.5)
    waiter.call.incoming.put_nowait(grpc.aio.EOF)
    waiter.task.cancel()
    await asyncio.wait({waiter.task})
    assert driver.observer.events[WireEvent.LATE_RESET] == 1


@flow
async def test_a_request_read_after_a_stall_and_reset_is_one_ghost_and_no_ticket() -> None:
    driver = Driver(limit=4)
    await asyncio.sleep(1)
    exchange = driver.open()
    driver.stall(1.0)
    await exchange.headers()
    assert exchange.last() == "request_headers"
    await exchange.reset()
    assert driver.spine.running == 0
    assert driver.spine.ghosts == pytest.approx(1, abs=0.05)
    assert driver.observer.events == {WireEvent.LATE_RESET: 1}


@flow
async def test_a_request_read_after_a_stall_that_envoy_still_waited_for_is_no_ghost() -> None:
    driver = Driver(limit=4)
    await asyncio.sleep(1)
    exchange = driver.open()
    driver.stall(1.0)
    await exchange.headers()
    await exchange.response()
    await asyncio.sleep(5)
    await exchange.eof()
    assert driver.observer.ends == {End.COMPLETED: 1}
    assert driver.spine.ghosts == 0


@flow
async def test_response_headers_lost_in_a_stall_leave_a_ghost() -> None:
    driver = Driver(limit=4)
    exchange = await driver.occupy()
    await asyncio.sleep(1)
    driver.stall(1.0)
    await exchange.reset()
    assert driver.observer.ends == {End.GHOST: 1}


@flow
async def test_a_response_that_ended_in_a_stall_is_completed() -> None:
    driver = Driver(limit=4)
    exchange = await driver.occupy()
    await exchange.response()
    await asyncio.sleep(1)
    driver.stall(1.0)
    await exchange.eof()
    assert driver.observer.ends == {End.COMPLETED: 1}


@flow
async def test_a_body_is_asked_for_and_decides() -> None:
    driver = Driver()
    exchange = driver.open()
    await exchange.headers(length=40)
    assert exchange.replies()[0].mode_override.request_body_mode == 2
    assert driver.spine.running == 0
    await exchange.body(b'{"model": "m", "max_tokens": 5}')
    assert exchange.last() == "request_body"
    assert driver.spine.running == 1


@flow
async def test_a_client_that_leaves_while_it_uploads_holds_nothing() -> None:
    driver = Driver()
    exchange = driver.open()
    await exchange.headers(length=40)
    await asyncio.sleep(3)
    await exchange.reset()
    assert (driver.spine.running, driver.spine.waiting, driver.spine.ghosts) == (0, 0, 0)
    assert driver.observer.outcomes == {Outcome.CLIENT_GONE: 1}


@flow
async def test_a_body_that_envoy_finds_too_large_holds_nothing() -> None:
    driver = Driver()
    await driver.occupy()
    exchange = driver.open()
    await exchange.headers(length=40)
    await exchange.response(413)
    await exchange.eof()
    assert (driver.spine.running, driver.spine.waiting, driver.spine.ghosts) == (1, 0, 0)
    assert not driver.service.warnings


@flow
async def test_a_body_lost_in_a_stall_leaves_a_ghost() -> None:
    driver = Driver()
    exchange = driver.open()
    await exchange.headers(length=40)
    await asyncio.sleep(1)
    driver.stall(1.0)
    await exchange.reset()
    assert driver.observer.ends == {End.GHOST: 1}


@flow
async def test_a_body_that_never_comes_still_holds_and_is_not_asked_for_again() -> None:
    driver = Driver(limit=4)
    first = driver.open()
    await first.headers(length=40)
    await first.response()
    assert first.last() == "response_headers"
    assert driver.spine.running == 1
    assert driver.service.warnings == (NO_BODIES,)
    second = driver.open()
    await second.headers(length=40)
    assert second.replies()[0].mode_override.request_body_mode == 0
    assert driver.spine.running == 2
    await first.eof()
    assert driver.spine.running == 1


@flow
async def test_a_message_that_comes_while_we_wait_is_answered_after_the_verdict() -> None:
    driver = Driver()
    running = await driver.occupy()
    waiter = driver.open()
    await waiter.headers()
    await waiter.body(b"chunk")
    assert len(waiter.call.written) == 1
    await running.eof()
    await settle()
    assert [reply.WhichOneof("response") for reply in waiter.replies()] == [None, "request_headers", "request_body"]


@flow
async def test_streams_that_we_end_ourselves_run_on() -> None:
    driver = Driver()
    exchange = await driver.occupy()
    await exchange.response()
    driver.service.stopping()
    await exchange.reset()
    assert driver.observer.ends == {End.GHOST: 1}


@flow
async def test_what_handlers_left_unfinished_is_released() -> None:
    driver = Driver()
    await driver.occupy()
    assert driver.service.streams == 1
    driver.service.stopping()
    driver.service.release_all()
    assert driver.spine.running == 0


@flow
async def test_a_reply_to_a_call_that_is_over_does_no_harm() -> None:
    driver = Driver()
    exchange = driver.open()
    exchange.call.broken = True
    await exchange.headers()
    await exchange.eof()
    assert driver.spine.running == 0
    assert driver.observer.events == {WireEvent.CLIENT_GONE: 1}


@flow
async def test_in_observability_mode_nothing_is_said_or_held() -> None:
    driver = Driver()
    exchange = driver.open()
    await exchange.headers(protocol={"observing": True})
    assert exchange.call.written == []
    assert driver.spine.running == 0
    assert driver.service.warnings == (IGNORES_OVERRIDE,)


@flow
async def test_full_duplex_chunks_are_sent_back() -> None:
    driver = Driver()
    exchange = driver.open()
    await exchange.headers(length=40, protocol={"request_body_mode": 4})
    assert exchange.last() == "request_headers"
    await exchange.body(b"chunk")
    assert exchange.replies()[-1].request_body.response.body_mutation.streamed_response.body == b"chunk"


@flow
async def test_a_message_of_unknown_kind_ends_the_stream_and_leaves_a_ghost() -> None:
    driver = Driver()
    exchange = await driver.occupy()
    exchange.call.incoming.put_nowait(b"\xff\xff")
    await exchange.task
    assert driver.observer.ends == {End.GHOST: 1}
    assert driver.observer.events[WireEvent.UNEXPECTED_MESSAGE] == 1


class BrokenGate:
    """A bug in the spine."""

    def arrive(self, head: RequestHead) -> Pass | Candidate | Rejection:
        raise RuntimeError(f"a bug, at {head.path}")

    def decide(self, candidate: Candidate, body: bytes | None) -> Ticket | Waiting | Rejection | Pass:
        raise NotImplementedError

    def header_changes(self, ticket: Ticket) -> HeaderChanges:
        raise NotImplementedError


@flow
async def test_a_bug_of_ours_lets_the_request_pass() -> None:
    driver = Driver(gate=BrokenGate())
    exchange = driver.open()
    await exchange.headers()
    await exchange.task
    assert exchange.last() == "request_headers"
    assert driver.observer.events == {WireEvent.HANDLER_ERROR: 1}
    assert driver.service.streams == 0
