"""What a request takes from a pool: from body bytes to facts, from facts to a cost. Pure.

Bytes stand for tokens by a factor: a tokenizer per model would be exact and a hundred times the price. Anything that
does not parse is costed by its length; the engine, not we, tells the client what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.config import CostPolicy
from extproc.model import BodyFacts, Cost

_MESSAGE_TOKENS = 4
"""Role and separators of one chat message in the common chat templates."""
_MEDIA_TOKENS = 1000
"""One image or clip of audio, whatever its bytes: about what vision models make of a 1024 x 1024 picture."""
_MOST_TEXT_BYTES = 1 << 20
"""A longer body that nobody read is media with a few words: as text it would not fit the context of most models."""
_MEDIA_BYTES_PER_TOKEN = 512
"""Of such a body: a photo of 2 MB in base64 is some 4000 tokens at the finest that vision models make of it."""
_MOST_SEQUENCES = 128
"""OpenAI's bound on `n`; more is taken as this."""
_MOST_VALUES = 32_768
"""JSON values that are looked at, about a microsecond each. Of more the prompt is told by the length: a megabyte of `{}`
kept the event loop busy for a third of a second, and a few such bodies made Envoy let everybody pass."""


class _Body(msgspec.Struct):
    """The members that tell cost and class; all others are skipped unread. `Any`: a wrong type is the engine's to refuse."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None
    system: Any = None
    instructions: Any = None
    tools: msgspec.Raw = msgspec.Raw()
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    service_tier: Any = None
    stream: Any = None


class _Outline(msgspec.Struct):
    """What is read of a body of too many values: everything but the prompt. The rest is skipped, which costs little."""

    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    service_tier: Any = None
    stream: Any = None


_decoder = msgspec.json.Decoder(_Body)
_outline_decoder = msgspec.json.Decoder(_Outline)


def read_body(body: bytes, policy: CostPolicy) -> BodyFacts | None:
    """None where it is no JSON object. Never raises."""
    try:
        read = _decoder.decode(body) if _most_values(body) <= _MOST_VALUES else _outline_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    maxima = [read.max_completion_tokens, read.max_tokens, read.max_output_tokens]
    return BodyFacts(
        model=read.model if isinstance(read.model, str) else None,
        prompt_tokens=_prompt_tokens(read, policy) if isinstance(read, _Body) else None,
        max_output_tokens=next((most for most in maxima if _is_count(most)), None),
        sequences=min(read.n, _MOST_SEQUENCES) if _is_count(read.n) else 1,
        service_tier=read.service_tier if isinstance(read.service_tier, str) else None,
        stream=read.stream is True,
    )


def _most_values(body: bytes) -> int:
    """No fewer than the body holds: each value comes after a comma or an opening bracket, as do parts of its texts."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _prompt_tokens(read: _Body, policy: CostPolicy) -> int:
    text_bytes, other_tokens = _measure([read.messages, read.prompt, read.input, read.system, read.instructions])
    text_bytes += len(bytes(read.tools))
    return max(1, round(text_bytes * policy.tokens_per_byte) + other_tokens)


def estimate(
    facts: BodyFacts | None,
    policy: CostPolicy,
    *,
    length_bytes: int | None,
    generates: bool,
    expected_output_tokens: float | None,
) -> Cost:
    """The cost to reserve. `length_bytes`: of the body, None unknown; `expected_output_tokens`: what answers took lately."""
    if facts is not None and facts.prompt_tokens is not None:
        prompt = facts.prompt_tokens
    elif length_bytes is not None:
        media = facts is None and length_bytes > _MOST_TEXT_BYTES
        prompt = max(
            1, round(length_bytes / _MEDIA_BYTES_PER_TOKEN if media else length_bytes * policy.tokens_per_byte)
        )
    else:
        prompt = policy.default_prompt_tokens
    if not generates:
        return Cost(prompt, 0)
    expected = expected_output_tokens if expected_output_tokens is not None else policy.default_output_tokens
    output = max(1, round(expected))
    if facts is None:
        return Cost(prompt, output)
    most = facts.max_output_tokens
    return Cost(prompt, output if most is None else min(output, most), facts.sequences)


def surely_too_large(facts: BodyFacts, engine_max_tokens: int) -> bool:
    """The prompt alone is larger than an engine's whole KV cache, even were the estimate twice too high."""
    return facts.prompt_tokens is not None and facts.prompt_tokens > 2 * engine_max_tokens


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _measure(roots: list[object]) -> tuple[int, int]:
    """Bytes of text, and tokens of what is not text, in any nesting of the APIs' prompt forms.

    Strings are text, lists of integers are token ids, parts with an image or audio count flat. A stack instead of
    recursion: depth is the client's to choose.
    """
    text_bytes = 0
    tokens = 0
    stack = list(roots)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            text_bytes += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            if value and isinstance(value[0], int):
                tokens += len(value)
            else:
                stack.extend(value)
        elif isinstance(value, dict):
            if "role" in value:
                tokens += _MESSAGE_TOKENS
            if _is_media(value):
                tokens += _MEDIA_TOKENS
            else:
                stack.extend(part for key, part in value.items() if key not in ("role", "type", "id", "cache_control"))
    return text_bytes, tokens


def _is_media(part: dict[object, object]) -> bool:
    return "role" not in part and any(
        key in part for key in ("image_url", "input_audio", "source", "file", "video_url")
    )
