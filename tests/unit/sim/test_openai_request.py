"""What the fake engine makes of request bodies, good and bad, and the bytes it answers with."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from extproc.sim.engine_spec import SimRequest
from extproc.sim.openai_reply import WORDS, Answer, Reply, chunk, words
from extproc.sim.openai_request import (
    ApiError,
    Endpoint,
    Generation,
    OutputLengths,
    parse_generation,
    sequences,
    tokens_of,
)

MODELS = ("llama-3-8b", "alias")
LENGTHS = OutputLengths(seed=7, median=200, sigma=0.7)


def read(endpoint: Endpoint, header: str | None = None, **body: Any) -> Generation | ApiError:
    return parse_generation(endpoint, json.dumps(body).encode(), priority_header=header, models=MODELS)


def chat(text: str = "hello", **body: Any) -> Generation | ApiError:
    return read(Endpoint.CHAT, messages=[{"role": "user", "content": text}], **body)


def good(parsed: Generation | ApiError) -> Generation:
    assert isinstance(parsed, Generation), parsed
    return parsed


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("a", 1), ("abcd", 1), ("abcde", 2), ("éé", 1), ("ééé", 2)])
def test_a_token_is_four_bytes_rounded_up(text: str, tokens: int) -> None:
    assert tokens_of(text) == tokens
    assert good(chat(text)).prompt_tokens == (tokens,)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("12345678", (2,)),
        (["1234", "12345678"], (1, 2)),
        ([11, 12, 13], (3,)),
        ([[1, 2], [3, 4, 5]], (2, 3)),
    ],
)
def test_all_forms_of_prompt_are_read(prompt: object, tokens: tuple[int, ...]) -> None:
    parsed = good(read(Endpoint.COMPLETION, prompt=prompt))
    assert parsed.prompt_tokens == tokens
    assert parsed.max_tokens == 16


def test_text_parts_count_and_others_do_not() -> None:
    parts = [{"type": "text", "text": "12345678"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    parsed = good(read(Endpoint.CHAT, messages=[{"role": "user", "content": parts}, {"role": "assistant"}]))
    assert parsed.prompt_tokens == (2,)


def test_max_completion_tokens_beats_max_tokens() -> None:
    assert good(chat(max_tokens=5)).max_tokens == 5
    assert good(chat(max_tokens=5, max_completion_tokens=9)).max_tokens == 9
    assert good(chat()).max_tokens is None


def test_the_priority_header_beats_the_body() -> None:
    messages = [{"role": "user", "content": "x"}]
    assert good(read(Endpoint.CHAT, messages=messages, priority=3)).priority == 3
    assert good(read(Endpoint.CHAT, "-2", messages=messages, priority=3)).priority == -2


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        (b"", 400, "Bad Request", "truncated"),
        (b"{nope", 400, "Bad Request", "malformed"),
        (b"\xff\xfe", 400, "Bad Request", ""),
        (b'{"x":' + b"[" * 200_000, 400, "Bad Request", "nested"),
        (b"[]", 400, "Bad Request", "Expected `object`"),
        (b"{}", 400, "Bad Request", "messages"),
        (b'{"messages": []}', 400, "Bad Request", "messages"),
        (b'{"messages": "hi"}', 400, "Bad Request", "$.messages"),
        (b'{"messages": [{"role": "user", "content": 3}]}', 400, "Bad Request", "content"),
        (b'{"messages": [{"role": "user"}], "max_tokens": "9"}', 400, "Bad Request", "$.max_tokens"),
        (b'{"messages": [{"role": "user"}], "max_tokens": 0}', 400, "Bad Request", "$.max_tokens"),
        (b'{"messages": [{"role": "user"}], "n": 0}', 400, "Bad Request", "$.n"),
        (b'{"messages": [{"role": "user"}], "stream": 1}', 400, "Bad Request", "$.stream"),
        (b'{"messages": [{"role": "user"}], "model": "gpt-9"}', 404, "NotFoundError", "`gpt-9` does not exist"),
    ],
)
def test_what_cannot_be_read_is_refused_in_openais_shape(body: bytes, status: int, kind: str, says: str) -> None:
    parsed = parse_generation(Endpoint.CHAT, body, priority_header=None, models=MODELS)
    assert isinstance(parsed, ApiError)
    error = json.loads(parsed.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (parsed.status, error["code"], error["type"]) == (status, status, kind)
    assert says in error["message"]


@pytest.mark.parametrize("prompt", [[], "", [[]], [[1], []], ["a", 1], [1, "a"], [1.5], None])
def test_prompts_that_are_none_are_refused(prompt: object) -> None:
    assert isinstance(read(Endpoint.COMPLETION, prompt=prompt), ApiError)


def test_more_answers_than_the_bound_are_refused() -> None:
    assert isinstance(read(Endpoint.COMPLETION, prompt=["a"] * 65, n=2), ApiError)
    assert isinstance(read(Endpoint.COMPLETION, "high", prompt="a"), ApiError)


def test_what_does_not_fit_the_context_is_refused() -> None:
    for body in ({"text": "x" * 400}, {"text": "x" * 40, "max_tokens": 91}):
        refused = sequences(good(chat(**body)), longest=100, lengths=LENGTHS)
        assert isinstance(refused, ApiError)
        assert refused.status == 400
        assert "maximum context length is 100 tokens" in refused.message


def test_ignore_eos_gives_exactly_max_tokens() -> None:
    planned = sequences(good(chat(ignore_eos=True, max_tokens=77)), longest=1000, lengths=LENGTHS)
    assert planned == [SimRequest(2, 77, 77, 0, 1)]


def test_lengths_are_drawn_from_seed_and_body_and_are_the_same_on_every_run() -> None:
    def drawn(text: str, lengths: OutputLengths = LENGTHS) -> list[int]:
        planned = sequences(good(chat(text, n=3)), longest=100_000, lengths=lengths)
        assert isinstance(planned, list)
        return [request.output_tokens for request in planned]

    assert drawn("one") == drawn("one")
    assert len({*drawn("one"), *drawn("two")}) > 3
    assert drawn("one") != drawn("one", OutputLengths(seed=8, median=200, sigma=0.7))
    assert drawn("one", OutputLengths(seed=8, median=200, sigma=0.0)) == [200] * 3
    assert median([length for index in range(200) for length in drawn(str(index))]) == pytest.approx(200, rel=0.15)


def test_a_drawn_length_never_exceeds_max_tokens() -> None:
    planned = sequences(good(chat(max_tokens=3, n=20)), longest=1000, lengths=LENGTHS)
    assert isinstance(planned, list)
    assert max(request.output_tokens for request in planned) == 3
    assert all(request.ending == "length" for request in planned if request.output_tokens == 3)


@pytest.mark.parametrize(("start", "count"), [(0, 0), (0, 1), (7, 1), (7, 2), (3, 30)])
def test_text_is_one_word_per_token(start: int, count: int) -> None:
    assert words(start, count) == "".join(WORDS[(start + i) % len(WORDS)] for i in range(count))


def test_names_in_a_reply_are_escaped() -> None:
    reply = Reply(Endpoint.CHAT, request_id='a"b\\', model='m"', created=1)
    event = reply.event(0, " alfa")
    assert json.loads(event.removeprefix(b"data: "))["id"] == 'chatcmpl-a"b\\'
    whole = json.loads(reply.whole([Answer(0, 2, "stop")], prompt_tokens=5))
    assert whole["model"] == 'm"'
    assert whole["usage"]["total_tokens"] == 7


def test_a_chunk_names_its_length() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
