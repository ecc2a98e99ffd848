"""From bodies to costs; whatever comes, no exception."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import CostPolicy
from extproc.cost import estimate, read_body, surely_too_large, unread_length
from extproc.model import Cost
from extproc.request import BodyFacts

POLICY = CostPolicy()


def facts(**body: object) -> BodyFacts:
    found = read_body(json.dumps(body).encode(), POLICY)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "x" * 400}, 100),
        ({"prompt": ["x" * 400, "y" * 400]}, 200),
        ({"prompt": [1, 2, 3, 4, 5]}, 5),
        ({"prompt": [[1, 2, 3], [4, 5]]}, 5),
        ({"input": "x" * 400}, 100),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x" * 400}]}]}, 104),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, 104),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 400}]}]}, 104),
        ({"system": "s" * 40, "messages": [{"role": "user", "content": "x" * 400}]}, 114),
        ({"messages": [{"role": "user", "content": "é" * 200}]}, 104),
        ({"prompt": "x" * 40, "suffix": "y" * 40}, 20),
        ({"prompt": [["a"], ["b" * 39]]}, 10),
        ({"instructions": "i" * 40, "input": "x" * 400}, 110),
        ({"input": [[1, 2, 3], [4, 5]]}, 5),
        ({"input": "x" * 400, "previous_response_id": "resp_1"}, 1100),
        ({"input": "x" * 400, "previous_response_id": None}, 100),
        ({"query": "q" * 40, "documents": ["d" * 400, "e" * 400]}, 220),
        ({"query": "q" * 40, "documents": [{"text": "d" * 400}]}, 110),
        ({"text_1": "q" * 40, "text_2": ["d" * 400, "e" * 400]}, 220),
        ({"text_1": ["q" * 40, "r" * 40], "text_2": ["d" * 400, "e" * 400]}, 220),
        ({"queries": ["q" * 40], "documents": ["d" * 400] * 3}, 330),
        ({"text_1": "q" * 40, "text_2": "d" * 400}, 110),
        ({"queries": "q" * 40, "items": ["d" * 400]}, 110),
        ({"data_1": "q" * 40, "data_2": ["d" * 400]}, 110),
        ({"text": "x" * 400, "sampling_params": {"max_new_tokens": 7}}, 100),
        ({"input_ids": [[1, 2, 3], [4, 5]]}, 5),
        ({"text_input": "x" * 400, "max_tokens": 7}, 100),
        ({"input": "x" * 400, "text": {"format": {"type": "json_schema", "name": "n" * 400}}}, 100),
        ({"query": 7, "documents": None}, 1),
        ({}, 1),
    ],
)
def test_prompt_tokens_of_every_prompt_form(body: dict[str, object], tokens: int) -> None:
    assert facts(**body).prompt_tokens == tokens


def test_an_image_counts_flat_whatever_its_bytes() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert facts(messages=[{"role": "user", "content": [picture]}]).prompt_tokens == 1004


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 99_999}}, 1000),
        ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, 1000),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 99_999}}, 1000),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d" * 4000}}, 1000),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d" * 80}]}}, 20),
        ({"type": "input_image", "image_url": "data:image/png;base64," + "A" * 99_999}, 1000),
        ({"type": "input_file", "filename": "a.pdf", "file_data": "A" * 99_999}, 1000),
        ({"type": "input_audio", "input_audio": {"data": "A" * 99_999}}, 1000),
        ({"type": "tool_use", "id": "t" * 99, "name": "edit", "input": {"source": "s" * 396}}, 100),
        ({"type": "tool_result", "tool_use_id": "abcd", "content": [{"type": "text", "text": "r" * 396}]}, 100),
        ({"type": "thinking", "thinking": "t" * 400, "signature": "s" * 4000}, 100),
        ({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e" * 4000}, 0),
    ],
)
def test_parts_of_every_api(part: dict[str, object], tokens: int) -> None:
    assert facts(messages=[{"role": "user", "content": [part]}]).prompt_tokens == 4 + tokens


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        ({"prompt": "one"}, 1),
        ({"prompt": ["one", "two", "three"]}, 3),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
        ({"prompt": {"id": "a stored one"}}, 1),
        ({"prompt": ["one", "two"], "n": 4}, 8),
        ({"prompt": "one", "n": 2, "best_of": 5}, 5),
        ({"prompt": "one", "n": 2, "best_of": None}, 2),
        ({"prompt": "one", "n": 10**9}, 128),
        ({"prompt": ["x"] * 5000}, 2048),
        ({"messages": [], "n": 3}, 3),
        ({"input": ["one", "two"]}, 1),
    ],
)
def test_sequences_of_every_prompt_form(body: dict[str, object], sequences: int) -> None:
    assert facts(**body).sequences == sequences


def test_sglangs_own_api_says_the_rest_in_sampling_params() -> None:
    found = facts(text=["a" * 40, "b" * 40], sampling_params={"max_new_tokens": 7, "n": 2}, stream=True)
    assert found == BodyFacts(prompt_tokens=20, max_output_tokens=7, sequences=4, stream=True)


@pytest.mark.parametrize(
    ("announced", "compressed", "unfolded", "length"),
    [
        (1000, False, 0, 1000),
        (None, False, 0, None),
        (1000, True, 0, 4000),
        (1000, True, 1 << 20, 1 << 20),
        (None, True, 0, None),
        (None, True, 500, 500),
        (0, True, 0, 0),
    ],
)
def test_the_length_of_a_body_that_is_not_read(
    announced: int | None, compressed: bool, unfolded: int, length: int | None
) -> None:
    assert unread_length(announced, POLICY, compressed=compressed, unfolded=unfolded) == length


def test_tools_count_by_their_bytes() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 4000}}]
    assert (facts(tools=tools).prompt_tokens or 0) > 1000


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_output_tokens": 9}, 9),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 1e9}, None),
        ({"max_tokens": None}, None),
    ],
)
def test_maxima_of_every_name_and_nonsense(body: dict[str, object], most: int | None) -> None:
    assert facts(**body).max_output_tokens == most


def test_wrong_types_are_the_engines_to_refuse() -> None:
    found = facts(model=7, messages="hello", n="many", service_tier=[], stream="yes")
    assert (found.model, found.sequences, found.service_tier, found.stream) == (None, 1, None, False)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"a":' * 5000, b"[" * 100_000])
def test_what_is_no_json_object_is_none(body: bytes) -> None:
    assert read_body(body, POLICY) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    read_body(body, POLICY)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
members = st.sampled_from(
    [
        *("model", "messages", "prompt", "suffix", "input", "system", "tools", "max_tokens", "n", "best_of", "role"),
        *("service_tier", "query", "queries", "documents", "text_1", "text_2", "previous_response_id"),
    ]
)


@given(st.dictionaries(members, json_values, max_size=6))
def test_no_json_raises_and_costs_are_counts(body: dict[str, object]) -> None:
    found = read_body(json.dumps(body).encode(), POLICY)
    assert found is not None
    cost = estimate(found, POLICY, length_bytes=None, generates=True, expected_output_tokens=None)
    assert cost.prompt_tokens >= 1
    assert cost.output_tokens >= 1
    assert 1 <= cost.sequences <= 4 * 128


@pytest.mark.parametrize(
    ("read", "length", "generates", "expected", "cost"),
    [
        (BodyFacts(prompt_tokens=10, max_output_tokens=5), None, True, None, Cost(10, 5)),
        (BodyFacts(prompt_tokens=10, max_output_tokens=5000), None, True, None, Cost(10, 256)),
        (BodyFacts(prompt_tokens=10, max_output_tokens=5000), None, True, 40.4, Cost(10, 40)),
        (BodyFacts(prompt_tokens=10, sequences=3), None, True, 40, Cost(10, 40, 3)),
        (BodyFacts(prompt_tokens=10), None, False, 40, Cost(10, 0)),
        (None, 4000, True, None, Cost(1000, 256)),
        (None, 0, True, None, Cost(1, 256)),
        (None, None, True, 100, Cost(1000, 100)),
        (None, None, False, 100, Cost(1000, 0)),
    ],
)
def test_the_estimate(
    read: BodyFacts | None,
    length: int | None,
    generates: bool,
    expected: float | None,
    cost: Cost,
) -> None:
    found = estimate(read, POLICY, length_bytes=length, generates=generates, expected_output_tokens=expected)
    assert found == cost


def test_too_large_needs_to_be_sure() -> None:
    assert not surely_too_large(BodyFacts(prompt_tokens=8000), 4096)
    assert surely_too_large(BodyFacts(prompt_tokens=8200), 4096)
    assert not surely_too_large(BodyFacts(), 4096)


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0", b'""', b'{"a":[]}'])
def test_a_body_of_very_many_values_is_costed_by_its_length_and_soon(value: bytes) -> None:
    """They took the event loop a microsecond each: with a few such bodies Envoy let everybody pass."""
    count = (4 << 20) // (len(value) + 1)
    body = b'{"model": "m", "max_tokens": 7, "n": 2, "messages": [[],' + b",".join([value] * count) + b"]}"
    start = time.thread_time()
    read = read_body(body, POLICY)
    assert time.thread_time() - start < 0.15
    assert read is not None
    assert (read.model, read.prompt_tokens, read.max_output_tokens, read.sequences) == ("m", None, 7, 2)
    cost = estimate(read, POLICY, length_bytes=len(body), generates=True, expected_output_tokens=None)
    assert cost.prompt_tokens == round(len(body) * POLICY.tokens_per_byte)
    assert cost.output_tokens == 7


def test_a_long_text_is_still_read() -> None:
    assert facts(prompt="Some words, some more, [and] {others}. " * 7_000).prompt_tokens == 68_250


@pytest.mark.parametrize(("length", "tokens"), [(1 << 20, 262_144), (2_700_000, 5_273), (20_000_000, 39_062)])
def test_a_long_body_that_nobody_read_is_costed_as_pictures(length: int, tokens: int) -> None:
    """As text a photo of 2 MB took the whole pool: it waited until that was empty, and everybody behind it."""
    cost = estimate(None, POLICY, length_bytes=length, generates=True, expected_output_tokens=10)
    assert cost == Cost(tokens, 10)


@pytest.mark.parametrize("texts", [0, 10, 63, 64, 65, 5000])
def test_a_long_body_of_few_values_is_read_whatever_its_texts_hold(texts: int) -> None:
    """A comma or bracket in a text may be a value's, as far as a glance can tell: up to the bound that costs nothing."""
    found = facts(messages=["x" * 200_000, *[",[{"] * texts])
    assert found.prompt_tokens == round((200_000 + 3 * texts) * POLICY.tokens_per_byte)


@pytest.mark.parametrize("length", [10**12, 10**18 - 1])
def test_a_length_that_no_context_has_is_costed_as_the_longest(length: int) -> None:
    """By its announced length alone one request owed its tenant's quota for a billion years, longer than the store can keep."""
    cost = estimate(None, POLICY, length_bytes=length, generates=True, expected_output_tokens=10)
    assert cost == Cost(10_000_000, 10)


def test_a_member_that_an_engine_skips_hides_nothing_from_it() -> None:
    """With an empty `sampling_params` 128 answers cost as much as one, and rules on the model did not hold."""
    openai = {"model": "large", "messages": [], "n": 128, "max_tokens": 900, "service_tier": "flex"}
    for skipped in ({}, {"max_new_tokens": 1, "n": 1}):
        assert facts(**openai, sampling_params=skipped) == facts(**openai)


@pytest.mark.parametrize(
    ("prompt", "read", "skipped"),
    [
        ("messages", "max_completion_tokens", "max_output_tokens"),
        ("messages", "max_tokens", "max_output_tokens"),
        ("prompt", "max_tokens", "max_completion_tokens"),
        ("text_input", "max_tokens", "max_completion_tokens"),
        ("input", "max_output_tokens", "max_tokens"),
    ],
)
def test_a_bound_of_another_api_bounds_nothing(prompt: str, read: str, skipped: str) -> None:
    """With one more member any answer cost as one of a single token."""
    assert facts(**{prompt: "x", read: 900, skipped: 1}).max_output_tokens == 900
    assert facts(**{prompt: "x", skipped: 1}).max_output_tokens is None


def test_of_several_prompts_the_dearest_is_believed() -> None:
    found = facts(text=["a", "b"], messages=[], max_tokens=1, sampling_params={"n": 4, "max_new_tokens": 900})
    assert (found.sequences, found.max_output_tokens) == (8, 900)
    assert facts(messages=[], max_tokens=1, input="x").max_output_tokens is None
    assert facts(messages=[], max_tokens=900, max_completion_tokens=1).max_output_tokens == 900, "as Anthropic's"
