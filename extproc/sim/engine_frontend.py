"""The fake engine's generation endpoints: a request comes in, its sequences go to the engine, the reply goes out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import assert_never
from uuid import uuid4

from aiohttp import web

from extproc.clock import wall_clock
from extproc.sim.engine import Refusal, SimRequest
from extproc.sim.engine_control import EngineControl, HttpCounts
from extproc.sim.engine_pacer import EnginePacer
from extproc.sim.engine_streams import SseStream, WholeAnswer
from extproc.sim.messages_api import MessagesReply, error_body, parse_messages
from extproc.sim.openai_reply import Answer, Reply, ReplyForm, embeddings
from extproc.sim.openai_request import (
    ApiError,
    Endpoint,
    Generation,
    OutputLengths,
    bad_request,
    parse_generation,
    sequences,
    unreadable,
)


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has been read and may go to the engine."""

    generation: Generation
    requests: list[SimRequest]
    reply: ReplyForm
    request_id: str


class Frontend:
    """Serves generation requests. `models`: names served, the engine's own first."""

    def __init__(
        self,
        pacer: EnginePacer,
        *,
        counts: HttpCounts,
        control: EngineControl,
        models: tuple[str, ...],
        lengths: OutputLengths,
    ) -> None:
        self._pacer = pacer
        self._counts = counts
        self._control = control
        self._models = models
        self._lengths = lengths
        self._draining = False

    def drain(self) -> None:
        """Takes no more requests, and ends those inside with finish reason `abort`, as vLLM does on SIGTERM."""
        self._draining = True
        self._pacer.cut_all()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.CHAT)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.COMPLETION)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.EMBEDDINGS)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.MESSAGES)

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        with self._counts.request():
            job = await self._read(request, endpoint)
            if isinstance(job, ApiError):
                answered: web.StreamResponse | ApiError = job
            elif job.generation.stream:
                answered = await self._streamed(request, job)
            else:
                answered = await self._whole(job)
            if isinstance(answered, ApiError):
                self._counts.refused += 1
                body = error_body(answered) if endpoint is Endpoint.MESSAGES else answered.body
                return web.Response(body=body, status=answered.status, content_type="application/json")
            self._counts.completed += 1
            return answered

    async def _read(self, request: web.Request, endpoint: Endpoint) -> _Job | ApiError:
        if request.content_type != "application/json":
            return unreadable("Unsupported Media Type: Only 'application/json' is allowed")
        body = await request.read()
        fault = await self._control.fault()
        if fault is not None or self._draining:
            return fault or ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError", "shutting down")
        priority_header = request.headers.get("x-vllm-priority")
        if endpoint is Endpoint.MESSAGES:
            generation = parse_messages(body, priority_header=priority_header, models=self._models)
        else:
            generation = parse_generation(endpoint, body, priority_header=priority_header, models=self._models)
        if isinstance(generation, ApiError):
            return generation
        requests = sequences(generation, longest=self._pacer.model.spec.longest, lengths=self._lengths)
        if isinstance(requests, ApiError):
            return requests
        request_id = request.headers.get("x-request-id") or uuid4().hex
        return _Job(generation, requests, _reply(generation, request_id), request_id)

    async def _whole(self, job: _Job) -> web.StreamResponse | ApiError:
        loop = asyncio.get_running_loop()
        answers = [
            WholeAnswer(index, request.ending, done=loop.create_future()) for index, request in enumerate(job.requests)
        ]
        entered = self._pacer.add(job.requests, answers)
        if isinstance(entered, Refusal):
            return _refusal(entered)
        try:
            finished: list[Answer] = [await answer.done for answer in answers]
        finally:
            self._left(entered, streaming=False)
        if job.generation.endpoint is Endpoint.EMBEDDINGS:
            body = embeddings(job.generation, finished)
        else:
            body = job.reply.whole(finished, sum(job.generation.prompt_tokens))
        return web.Response(body=body, content_type="application/json", headers={"x-request-id": job.request_id})

    async def _streamed(self, request: web.Request, job: _Job) -> web.StreamResponse | ApiError:
        stream = SseStream(
            job.reply,
            [sequence.ending for sequence in job.requests],
            prompt_tokens=sum(job.generation.prompt_tokens),
            done=asyncio.get_running_loop().create_future(),
        )
        entered = self._pacer.add(job.requests, stream.answers)
        if isinstance(entered, Refusal):
            return _refusal(entered)
        try:
            response = web.StreamResponse(
                headers={"content-type": "text/event-stream; charset=utf-8", "x-request-id": job.request_id}
            )
            writer = await response.prepare(request)
            if writer is None or request.transport is None:
                raise ConnectionResetError("the client left before the headers")
            stream.begin(request.transport, chunked=request.version >= (1, 1))
            await stream.done
        finally:
            self._left(entered, streaming=True)
        await response.write_eof()
        return response

    def _left(self, handles: list[int], *, streaming: bool) -> None:
        """The handler is through with these sequences; those that have not ended lost their client."""
        if self._pacer.abort(handles):
            self._counts.aborts += 1
            self._counts.resets += streaming


def _reply(generation: Generation, request_id: str) -> ReplyForm:
    if generation.endpoint is Endpoint.MESSAGES:
        tokens = sum(generation.prompt_tokens)
        return MessagesReply(request_id=request_id, model=generation.model, prompt_tokens=tokens)
    return Reply(
        generation.endpoint,
        request_id=request_id,
        model=generation.model,
        created=int(wall_clock()),
        usage=generation.include_usage,
    )


def _refusal(refusal: Refusal) -> ApiError:
    match refusal:
        case Refusal.TOO_LARGE:
            return bad_request("the request does not fit the KV cache")
        case Refusal.QUEUE_FULL:
            message = "The engine's queue is full: max_num_queued_reqs reached."
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
        case _:
            assert_never(refusal)
