"""Reading streamed answers: every cut of the bytes gives the same counts, and half an answer is never taken for one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.sse_events import EventCounter

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":" end"},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d,"total_tokens":12}}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = ROLE + TOKEN * 2 + LAST + USAGE % 3 + DONE


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def counted(*pieces: bytes) -> EventCounter:
    counter = EventCounter()
    for at, piece in enumerate(pieces):
        counter.feed(piece, float(at))
    return counter


@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_of_a_whole_answer_counts_the_same(cuts: list[int]) -> None:
    counter = counted(*pieces_of(ANSWER, cuts))
    assert (counter.events, counter.tokens, counter.finish_reason) == (3, 3, "length")
    assert counter.trouble == ""


def test_the_first_token_is_the_first_text_not_the_role() -> None:
    counter = counted(ROLE, TOKEN, TOKEN, LAST, DONE)
    assert (counter.first_at, counter.last_at) == (1.0, 3.0)


def test_an_event_may_carry_several_tokens_and_the_engine_counts_them() -> None:
    counter = counted(ROLE, TOKEN, LAST + USAGE % 9 + DONE)
    assert (counter.events, counter.tokens, counter.trouble) == (2, 9, "")


def test_spaces_in_the_json_change_nothing() -> None:
    counter = counted(ANSWER.replace(b'":', b'": '))
    assert (counter.tokens, counter.trouble) == (3, "")


def test_legacy_completions_count_their_text() -> None:
    assert counted(b'data: {"choices":[{"text":" a","finish_reason":null}]}\n\n' * 2).events == 2


@pytest.mark.parametrize(
    ("stream", "trouble"),
    [
        (TOKEN + LAST + USAGE % 2, "the stream was cut"),
        (TOKEN + LAST + USAGE % 1 + DONE, "2 events with text for 1 tokens"),
        (TOKEN + LAST + DONE, "2 events with text for None tokens"),
        (TOKEN + LAST.replace(b"length", b"abort") + USAGE % 2 + DONE, "the engine stopped early (abort)"),
        (TOKEN + USAGE % 1 + DONE, "the engine stopped early (no reason given)"),
        (b'data: {"error":{"code":503}}\n\n' + DONE, "the engine reported an error inside the stream"),
    ],
)
def test_half_an_answer_is_named(stream: bytes, trouble: str) -> None:
    assert counted(stream).trouble == trouble
