"""What the fake engine writes: OpenAI's JSON and server-sent events in vLLM's form. Pure: bytes out of numbers.

The text of an answer is the same eight words again and again, one word per token, so that the bytes of a stream's
chunks can be made once and sent many times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from extproc.sim.openai_request import Endpoint, Generation

WORDS = (" alfa", " echo", " golf", " kilo", " lima", " mike", " papa", " zulu")
_CYCLE = "".join(WORDS)
_WORD = len(WORDS[0])
_DIMENSIONS = 8
DONE = b"data: [DONE]\n\n"


def words(start: int, count: int) -> str:
    """The text of `count` tokens from token `start` on."""
    offset = start % len(WORDS)
    cycles = (offset + count) // len(WORDS) + 1
    return (_CYCLE * cycles)[offset * _WORD : (offset + count) * _WORD]


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished sequence: its place among the request's answers, tokens and finish reason."""

    index: int
    tokens: int
    reason: str


class ReplyForm(Protocol):
    """How the answers to one request are written, whichever API it spoke."""

    def opening(self, index: int) -> bytes:
        """Event(s) before the first token of answer `index`."""

    def event(self, index: int, text: str, reason: str | None = None) -> bytes:
        """Some tokens of answer `index`; the last ones carry the finish reason."""

    def closing(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """Event(s) after the last token."""

    def whole(self, answers: list[Answer], prompt_tokens: int) -> bytes:
        """The body of an answer that was not streamed. `prompt_tokens`: of all prompts together."""


class Reply:
    """OpenAI's form of one reply. `created`: seconds since the epoch; `usage`: a stream ends with an event that tells it."""

    __slots__ = ("_head", "_is_chat", "_usage", "_whole_head")

    def __init__(self, endpoint: Endpoint, *, request_id: str, model: str, created: int, usage: bool = False) -> None:
        self._usage = usage
        self._is_chat = endpoint is Endpoint.CHAT
        prefix, whole, part = (
            ("chatcmpl", "chat.completion", "chat.completion.chunk")
            if self._is_chat
            else ("cmpl", "text_completion", "text_completion")
        )
        name, model_json = _json(f"{prefix}-{request_id}"), _json(model)
        self._head = f'data: {{"id":{name},"object":"{part}","created":{created},"model":{model_json},"choices":['
        self._whole_head = f'{{"id":{name},"object":"{whole}","created":{created},"model":{model_json},"choices":['

    def opening(self, index: int) -> bytes:
        """What comes before an answer's first token: the role in a chat, nothing in a completion."""
        if not self._is_chat:
            return b""
        delta = '"delta":{"role":"assistant","content":""}'
        return f'{self._head}{{"index":{index},{delta},"logprobs":null,"finish_reason":null}}]}}\n\n'.encode()

    def event(self, index: int, text: str, reason: str | None = None) -> bytes:
        """Some tokens of answer `index`; `text` needs no escaping. The last one carries the finish reason."""
        body = f'"delta":{{"content":"{text}"}}' if self._is_chat else f'"text":"{text}"'
        end = "null" if reason is None else f'"{reason}","stop_reason":null'
        return f'{self._head}{{"index":{index},{body},"logprobs":null,"finish_reason":{end}}}]}}\n\n'.encode()

    def closing(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """What ends a stream."""
        if not self._usage:
            return DONE
        return f"{self._head}],{_usage(prompt_tokens, completion_tokens)}}}\n\n".encode() + DONE

    def whole(self, answers: list[Answer], prompt_tokens: int) -> bytes:
        """The JSON body of an answer that was not streamed. `prompt_tokens`: of all prompts together."""
        choices = ",".join(self._choice(answer) for answer in answers)
        usage = _usage(prompt_tokens, sum(answer.tokens for answer in answers))
        return f"{self._whole_head}{choices}],{usage}}}".encode()

    def _choice(self, answer: Answer) -> str:
        text = words(0, answer.tokens)
        body = f'"message":{{"role":"assistant","content":"{text}"}}' if self._is_chat else f'"text":"{text}"'
        end = f'"finish_reason":"{answer.reason}","stop_reason":null'
        return f'{{"index":{answer.index},{body},"logprobs":null,{end}}}'


def embeddings(generation: Generation, answers: list[Answer]) -> bytes:
    """The body of an embeddings reply: vectors of few numbers, always as floats, which every client reads."""
    vectors = [[byte / 256 for byte in generation.digest[at : at + _DIMENSIONS]] for at in range(len(answers))]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    tokens = sum(generation.prompt_tokens)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": generation.model, "usage": usage})


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of HTTP/1.1's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(prompt_tokens: int, completion_tokens: int) -> str:
    total = prompt_tokens + completion_tokens
    return (
        f'"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{total},'
        f'"completion_tokens":{completion_tokens},"prompt_tokens_details":null}}'
    )


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
