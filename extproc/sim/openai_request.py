"""What the fake engine reads: the bodies of OpenAI's requests, checked as vLLM checks them. Pure.

There is no tokenizer: a prompt has one token per four bytes of its text in UTF-8, rounded up. The length of an answer
is unknown to clients and gateways in advance, yet the same on every run: drawn from the engine's seed and the body.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from extproc.sim.engine_spec import SimRequest

BYTES_PER_TOKEN = 4
MOST_ANSWERS = 128
"""Bound on the sequences one request may ask for (prompts times `n`)."""
COMPLETION_MAX_TOKENS = 16
"""vLLM's default `max_tokens` on `/v1/completions`; a chat answer may fill the context."""


class Endpoint(StrEnum):
    """Which API. `MESSAGES` is Anthropic's and read in `messages_api`.

    An embedding is a sequence that ends with its first token: the nearest to a prefill alone that this engine has.
    """

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class ApiError:
    """A refusal in OpenAI's error shape with vLLM's words: `code` is the HTTP status as a number."""

    status: HTTPStatus
    kind: str
    message: str
    param: str | None = None

    @property
    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": int(self.status)}
        return msgspec.json.encode({"error": error})


@dataclass(frozen=True, slots=True)
class Generation:
    """A request as the engine sees it. One sequence per prompt and answer: `len(prompt_tokens) * n`."""

    endpoint: Endpoint
    model: str
    prompt_tokens: tuple[int, ...]
    n: int
    max_tokens: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    priority: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Lognormal answer lengths, tokens: `median`, and `sigma` of the logarithm."""

    seed: int
    median: float
    sigma: float

    def draw(self, digest: bytes, index: int) -> int:
        """The true length of answer `index` to the body of that digest; at least 1."""
        source = Random(hashlib.blake2b(digest, digest_size=8, key=f"{self.seed}/{index}".encode()).digest())
        return max(1, round(source.lognormvariate(math.log(self.median), self.sigma)))


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Body(msgspec.Struct, kw_only=True):
    """What is read of a body, chat and completion alike; everything else in it is ignored, as a model would."""

    model: str | None = None
    messages: list[_Message] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    """A text, texts, token ids, or lists of token ids; so is an embedding's `input`."""
    input: str | list[str | int | list[int]] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    priority: int = 0


_decode = msgspec.json.Decoder(_Body).decode


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400 for what reads well but cannot be served."""
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequestError", message, param)


def unreadable(message: str) -> ApiError:
    """400 for a body that does not fit the schema."""
    return ApiError(HTTPStatus.BAD_REQUEST, "Bad Request", message)


def parse_generation(
    endpoint: Endpoint, body: bytes, *, priority_header: str | None, models: tuple[str, ...]
) -> Generation | ApiError:
    """Reads a request body. `models`: the names served; the first one answers when the body names none."""
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return unreadable(str(error))
    except RecursionError:
        return unreadable("JSON is nested too deeply")
    prompts = _prompt_tokens(read, endpoint)
    if isinstance(prompts, ApiError):
        return prompts
    embeds = endpoint is Endpoint.EMBEDDINGS
    generation = Generation(
        endpoint=endpoint,
        model=models[0] if read.model is None else read.model,
        prompt_tokens=prompts,
        n=1 if embeds else read.n or 1,
        max_tokens=_max_tokens(read, endpoint),
        ignore_eos=read.ignore_eos or embeds,
        stream=bool(read.stream) and not embeds,
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        priority=read.priority,
        digest=hashlib.blake2b(body).digest(),
    )
    return checked(generation, priority_header=priority_header, models=models)


def checked(generation: Generation, *, priority_header: str | None, models: tuple[str, ...]) -> Generation | ApiError:
    """What holds for every API: the model is served, the answers are not too many, and the header's priority wins."""
    if generation.model not in models:
        message = f"The model `{generation.model}` does not exist."
        return ApiError(HTTPStatus.NOT_FOUND, "NotFoundError", message, "model")
    if generation.endpoint is not Endpoint.EMBEDDINGS and len(generation.prompt_tokens) * generation.n > MOST_ANSWERS:
        return bad_request(f"at most {MOST_ANSWERS} answers per request (prompts times n)", "n")
    if priority_header is None:
        return generation
    try:
        return replace(generation, priority=int(priority_header))
    except ValueError:
        return bad_request(f"X-Vllm-Priority must be an integer, got {priority_header!r}")


def _max_tokens(read: _Body, endpoint: Endpoint) -> int | None:
    if endpoint is Endpoint.EMBEDDINGS:
        return 1
    if endpoint is Endpoint.CHAT:
        return read.max_completion_tokens or read.max_tokens
    return read.max_tokens or COMPLETION_MAX_TOKENS


def sequences(generation: Generation, *, longest: int, lengths: OutputLengths) -> list[SimRequest] | ApiError:
    """The sequences a request becomes: all answers to the first prompt, then to the next. `longest`: in tokens."""
    planned: list[SimRequest] = []
    for prompt in generation.prompt_tokens:
        room = longest - prompt
        asked = generation.max_tokens
        if room < 1:
            return bad_request(f"{_context(longest, prompt)}. Please shorten the prompt.", "input_tokens")
        if asked is not None and asked > room:
            asks = f"'max_tokens' or 'max_completion_tokens' is too large: {asked}"
            return bad_request(f"{asks}. {_context(longest, prompt)} ({asked} > {longest} - {prompt}).", "max_tokens")
        bound = room if asked is None else asked
        for _ in range(generation.n):
            drawn = bound if generation.ignore_eos else min(bound, lengths.draw(generation.digest, len(planned)))
            planned.append(SimRequest(prompt, drawn, bound, generation.priority, generation.n))
    return planned


def _context(longest: int, prompt: int) -> str:
    return f"This model's maximum context length is {longest} tokens and your request has {prompt} input tokens"


def tokens_of(text: str) -> int:
    """The stand-in for a tokenizer; at least 1."""
    return max(1, math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN))


def _prompt_tokens(read: _Body, endpoint: Endpoint) -> tuple[int, ...] | ApiError:
    """Tokens of each prompt: one for a chat, any number for a completion or embeddings."""
    if endpoint is Endpoint.CHAT:
        if not read.messages:
            return unreadable("Object missing required field `messages`, or it is empty")
        return (tokens_of("".join(_text(message) for message in read.messages)),)
    name, prompt = ("input", read.input) if endpoint is Endpoint.EMBEDDINGS else ("prompt", read.prompt)
    if not prompt:
        return unreadable(f"Object missing required field `{name}`, or it is empty")
    if isinstance(prompt, str):
        return (tokens_of(prompt),)
    if len({type(item) for item in prompt}) > 1:
        return bad_request(f"{name} must be a string, strings, token ids or lists of token ids, not a mixture", name)
    if isinstance(prompt[0], int):
        return (len(prompt),)
    counts = [tokens_of(item) if isinstance(item, str) else len(item) for item in prompt if not isinstance(item, int)]
    return tuple(counts) if all(counts) else bad_request(f"a {name} of token ids must not be empty", name)


def _text(message: _Message) -> str:
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""
