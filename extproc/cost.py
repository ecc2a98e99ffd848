"""What a request takes from a pool: from body bytes to facts, from facts to a cost. Pure.

Bytes stand for tokens by a factor: a tokenizer per model would be exact and a hundred times the price. Anything that
does not parse is costed by its length; the engine, not we, tells the client what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import msgspec

from extproc.config import CostPolicy
from extproc.model import Cost
from extproc.request import BodyFacts

_MESSAGE_TOKENS = 4
"""Role and separators of one chat message in the common chat templates."""
_MEDIA_TOKENS = 1000
"""One image or clip of audio, whatever its bytes: about what vision models make of a 1024 x 1024 picture."""
_MOST_ANSWERS = 128
"""OpenAI's bound on `n` and `best_of`; more is taken as this."""
_MOST_PROMPTS = 2048
"""OpenAI's bound on the prompts of one completion request; more are taken as this."""


_MEDIA_KEYS = frozenset(
    ("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "file_id", "file_url")
)
_NO_PROMPT = frozenset(("role", "type", "id", "cache_control", "media_type", "signature", "encrypted_content"))
"""Members of messages and parts that never become prompt text: names, and seals as long as what they seal."""
_MOST_TEXT_BYTES = 1 << 20
"""A longer body that nobody read is media with a few words: as text it would not fit the context of most models."""
_MEDIA_BYTES_PER_TOKEN = 512
"""Of such a body: a photo of 2 MB in base64 is some 4000 tokens at the finest that vision models make of it."""
_MOST_TOKENS = 10_000_000
"""Of a prompt that nobody read: ten times the longest contexts. A length is what a client says, up to 18 digits of it."""
_MOST_VALUES = 32_768
"""JSON values that are looked at, about a microsecond each. Of more the prompt is told by the length: a megabyte of `{}`
kept the event loop busy for a third of a second, and a few such bodies made Envoy let everybody pass."""
_FEW = 64
"""Marks that are worth a look-up each."""


class _Body(msgspec.Struct):
    """The members that tell cost and class; all others are skipped unread. `Any`: a wrong type is the engine's to refuse."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    suffix: Any = None
    input: Any = None
    system: Any = None
    instructions: Any = None
    previous_response_id: Any = None
    query: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    text_1: Any = None
    text_2: Any = None
    data_1: Any = None
    data_2: Any = None
    text: Any = None
    text_input: Any = None
    input_ids: Any = None
    sampling_params: Any = None
    tools: msgspec.Raw = msgspec.Raw()
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    best_of: Any = None
    service_tier: Any = None
    stream: Any = None


class _Outline(msgspec.Struct):
    """What is read of a body of too many values: everything but the prompt. The rest is skipped, which costs little."""

    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    best_of: Any = None
    service_tier: Any = None
    stream: Any = None


_decoder = msgspec.json.Decoder(_Body)
_outline_decoder = msgspec.json.Decoder(_Outline)


def read_body(body: bytes, policy: CostPolicy) -> BodyFacts | None:
    """None where it is no JSON object. Never raises."""
    try:
        read = (_outline_decoder if _too_many_values(body) else _decoder).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    whole = read if isinstance(read, _Body) else None
    answers = max(_answers(read.n), _answers(read.best_of))
    return BodyFacts(
        model=read.model if isinstance(read.model, str) else None,
        prompt_tokens=None if whole is None else _prompt_tokens(whole, policy),
        max_output_tokens=_first_count(_maxima(read)) if whole is None else _most_output(whole),
        sequences=answers if whole is None else max(_prompts(whole.prompt) * answers, _native_sequences(whole)),
        service_tier=read.service_tier if isinstance(read.service_tier, str) else None,
        stream=read.stream is True,
    )


def _maxima(read: _Body | _Outline) -> tuple[object, ...]:
    return read.max_completion_tokens, read.max_tokens, read.max_output_tokens


def _most_output(read: _Body) -> int | None:
    """The bound on an answer that its engine reads: each API has its own, and its own prompt.

    An engine skips what is not its API's, which costs a client nothing to add: of several prompts the largest bound is
    believed, and none where one has none.
    """
    stated = []
    if read.messages is not None:
        # OpenAI's chat goes by the first of the two, Anthropic's messages by the second.
        stated.append(max(filter(_is_count, (read.max_completion_tokens, read.max_tokens)), default=None))
    if read.prompt is not None or read.text_input is not None:
        stated.append(_first_count((read.max_tokens,)))
    if read.input is not None:
        stated.append(_first_count((read.max_output_tokens,)))
    if isinstance(read.sampling_params, dict) and _native_prompt(read) is not None:
        stated.append(_first_count((read.sampling_params.get("max_new_tokens"),)))
    if not stated:
        return _first_count(_maxima(read))
    known = [most for most in stated if most is not None]
    return max(known) if len(known) == len(stated) else None


def _first_count(values: Iterable[object]) -> int | None:
    return next((value for value in values if _is_count(value)), None)


def _native_prompt(read: _Body) -> object:
    """SGLang's own API: one prompt or several in `text` or `input_ids`, the rest in `sampling_params`."""
    return _first(_prompt_text(read), read.input_ids)


def _native_sequences(read: _Body) -> int:
    sampling = read.sampling_params
    return _prompts(_native_prompt(read)) * _answers(sampling.get("n")) if isinstance(sampling, dict) else 1


def _prompt_text(read: _Body) -> object:
    """SGLang's prompt. In OpenAI's `/v1/responses` the same name holds the answer's format."""
    return None if isinstance(read.text, dict) else read.text


def _too_many_values(body: bytes) -> bool:
    """Each value comes after a comma or an opening bracket, as do parts of its texts: there are no more than of those."""
    return len(body) > _MOST_VALUES and sum(_count(body, mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES


def _count(body: bytes, mark: bytes) -> int:
    """As `bytes.count`, which looks at each byte by itself (0.3 ms a megabyte). `find` leaps, so it sees to the few."""
    at = -1
    for count in range(_FEW):
        at = body.find(mark, at + 1)
        if at < 0:
            return count
    return _FEW + body.count(mark, at + 1)


def _prompt_tokens(read: _Body, policy: CostPolicy) -> int:
    text_bytes, other_tokens = _measure(
        [
            *(read.messages, read.prompt, read.suffix, read.input, read.system, read.instructions),
            *(_prompt_text(read), read.text_input, read.input_ids),
        ]
    )
    scored_bytes, scored_tokens = _measure_scored(read)
    text_bytes += scored_bytes
    other_tokens += scored_tokens
    text_bytes += len(bytes(read.tools))
    if isinstance(read.previous_response_id, str):
        other_tokens += policy.default_prompt_tokens  # the conversation so far, which the engine keeps and we never saw
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
        tokens = length_bytes / _MEDIA_BYTES_PER_TOKEN if media else length_bytes * policy.tokens_per_byte
        prompt = max(1, min(round(tokens), _MOST_TOKENS))
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


def unread_length(announced: int | None, policy: CostPolicy, *, compressed: bool, unfolded: int = 0) -> int | None:
    """The length to cost a body by whose text is not read. `unfolded`: bytes of it that were seen when unfolding."""
    if not compressed:
        return announced
    return max(unfolded, round((announced or 0) * policy.compression_ratio)) or announced


def surely_too_large(facts: BodyFacts, engine_max_tokens: int) -> bool:
    """The prompt alone is larger than an engine's whole KV cache, even were the estimate twice too high."""
    return facts.prompt_tokens is not None and facts.prompt_tokens > 2 * engine_max_tokens


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 1


def _prompts(prompt: object) -> int:
    """A list of strings or of lists of token ids is one prompt each; token ids in one list are one together."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str | list):
        return 1
    return min(len(prompt), _MOST_PROMPTS)


def _answers(n: object) -> int:
    return min(n, _MOST_ANSWERS) if _is_count(n) else 1


def _measure_scored(read: _Body) -> tuple[int, int]:
    """What rerank and score requests compare: a single query is computed anew with every document."""
    query = _first(read.query, read.queries, read.text_1, read.data_1)
    documents = _first(read.documents, read.items, read.text_2, read.data_2)
    if query is None and documents is None:
        return 0, 0
    single = not isinstance(query, list) or len(query) == 1
    times = len(documents) if single and isinstance(documents, list) else 1
    query_bytes, query_tokens = _measure([query])
    text_bytes, tokens = _measure([documents])
    return text_bytes + query_bytes * times, tokens + query_tokens * times


def _first(*given: object) -> object:
    for value in given:
        if value is not None:
            return value
    return None


def _measure(roots: list[object]) -> tuple[int, int]:
    """Bytes of text, and tokens of what is not text, in any nesting of the APIs' prompt forms.

    Strings are text, lists of integers are token ids, parts with an image, audio or a file count flat. A stack instead
    of recursion: depth is the client's to choose.
    """
    text_bytes = 0
    tokens = 0
    stack = [root for root in roots if root is not None]
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
            elif _is_media(value):
                tokens += _MEDIA_TOKENS
                continue
            stack += [part for key, part in value.items() if key not in _NO_PROMPT]
    return text_bytes, tokens


def _is_media(part: dict[object, object]) -> bool:
    """A content part whose bytes are no text. Without a `type` it is none: a tool's arguments may have any names. `part`: no
    message."""
    if not isinstance(part.get("type"), str):
        return False
    source = part.get("source")
    if isinstance(source, dict):
        return source.get("type") not in ("text", "content")  # Anthropic's documents of plain text or of blocks
    return not _MEDIA_KEYS.isdisjoint(part)
