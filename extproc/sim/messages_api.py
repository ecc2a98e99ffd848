"""Anthropic's messages API on the fake engine, which vLLM serves beside OpenAI's: bodies read, replies written. Pure."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from extproc.sim.engine_stats import Finish
from extproc.sim.openai_reply import Answer, words
from extproc.sim.openai_request import ApiError, Endpoint, Generation, checked, tokens_of, unreadable

_STOP_REASONS = {Finish.LENGTH: "max_tokens", Finish.STOP: "end_turn"}


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    content: str | list[_Block] | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Body(msgspec.Struct, kw_only=True):
    model: str
    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    system: str | list[_Block] | None = None
    stream: bool | None = None
    ignore_eos: bool = False


_decode = msgspec.json.Decoder(_Body).decode


def parse_messages(body: bytes, *, priority_header: str | None, models: tuple[str, ...]) -> Generation | ApiError:
    """Reads a request body. `models`: the names served."""
    try:
        read = _decode(body)
        text = _text(read.system) + "".join(_text(message.content) for message in read.messages)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return unreadable(str(error))
    except RecursionError:
        return unreadable("JSON is nested too deeply")
    generation = Generation(
        endpoint=Endpoint.MESSAGES,
        model=read.model,
        prompt_tokens=(tokens_of(text),),
        n=1,
        max_tokens=read.max_tokens,
        ignore_eos=read.ignore_eos,
        stream=bool(read.stream),
        include_usage=True,
        priority=0,
        digest=hashlib.blake2b(body).digest(),
    )
    return checked(generation, priority_header=priority_header, models=models)


def error_body(error: ApiError) -> bytes:
    """An error in Anthropic's shape."""
    return msgspec.json.encode({"type": "error", "error": {"type": error.kind, "message": error.message}})


class MessagesReply:
    """The form of one reply: a message of one block of text."""

    def __init__(self, *, request_id: str, model: str, prompt_tokens: int) -> None:
        self._id = f"msg_{request_id}"
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._stop_reason: str | None = None

    def opening(self, index: int) -> bytes:
        """What comes before the first token."""
        block = {"type": "text", "text": ""}
        start = _event("message_start", message=self._message([], prompt_tokens=self._prompt_tokens, output_tokens=0))
        return start + _event("content_block_start", index=index, content_block=block)

    def event(self, index: int, text: str, reason: str | None = None) -> bytes:
        """Some tokens, and the end of the block where a reason is given."""
        delta = {"type": "text_delta", "text": text}
        written = _event("content_block_delta", index=index, delta=delta) if text else b""
        if reason is None:
            return written
        self._stop_reason = _STOP_REASONS.get(Finish(reason))
        return written + _event("content_block_stop", index=index)

    def closing(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """What comes after the last token."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": completion_tokens}
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        return _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def whole(self, answers: list[Answer], prompt_tokens: int) -> bytes:
        """The JSON body of an answer that was not streamed."""
        (answer,) = answers
        self._stop_reason = _STOP_REASONS.get(Finish(answer.reason))
        block = {"type": "text", "text": words(0, answer.tokens)}
        return msgspec.json.encode(self._message([block], prompt_tokens=prompt_tokens, output_tokens=answer.tokens))

    def _message(self, content: list[dict[str, str]], *, prompt_tokens: int, output_tokens: int) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": output_tokens},
        }


def _event(kind: str, **members: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **members}))


def _text(content: str | list[_Block] | None) -> str:
    """All text of a content in any nesting; images and documents count nothing, as this engine sees none."""
    if isinstance(content, list):
        return "".join((block.text or "") + _text(block.content) for block in content)
    return content or ""
