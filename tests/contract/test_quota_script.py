"""The law of quotas and `quota.lua` side by side, on a real server with a clock of ours; calls lost, repeated and late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.crc import key_slot

from extproc.quota import UNTOUCHED, Bucket, Due
from extproc.state.scripts import Script, quota_keys, read_owed
from tests.support import valkey

QUOTA = Script("quota")
START = 1_764_000_000.0
CLOSE = 1e-5
"""Seconds that the sums of floats of this size may differ by."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with valkey.running(tmp_path_factory.mktemp("v")) as running, running.client() as client:
        yield client


def call(client: Redis, replica: str, number: int, due: Due, *, now: float | str) -> Due:
    keys = quota_keys("test", "team-a", replica)
    now = now if isinstance(now, str) else repr(now)
    return read_owed(client.eval(QUOTA.text, 2, *keys, now, number, due.tokens_s, due.requests_s))


class Reference:
    """What the script is to do, in the words of the law."""

    def __init__(self) -> None:
        self.bucket: Bucket = UNTOUCHED
        self.last: dict[str, int] = {}

    def call(self, replica: str, number: int, due: Due, *, now: float) -> Due:
        if number > self.last.get(replica, 0):
            self.last[replica] = number
            self.bucket = self.bucket.after(due, now)
        return self.bucket.owed(now)


seconds = st.floats(-5, 90)
calls = st.tuples(
    st.sampled_from("ab"),
    st.integers(1, 6),
    st.builds(Due, seconds, seconds),
    st.floats(0, 0.5) | st.floats(0, 100),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, max_size=25))
def test_the_script_says_what_the_law_says_whatever_comes_in_whatever_order(
    server: Redis, line: list[tuple[str, int, Due, float]]
) -> None:
    server.flushall()
    reference, now = Reference(), START
    for replica, number, due, gap_s in line:
        now += gap_s
        expected = reference.call(replica, number, due, now=now)
        found = call(server, replica, number, due, now=now)
        assert (found.tokens_s, found.requests_s) == pytest.approx((expected.tokens_s, expected.requests_s), abs=CLOSE)


def test_a_call_repeated_or_late_is_not_counted_again(server: Redis) -> None:
    server.flushall()
    assert call(server, "a", 1, Due(10, 1), now=START) == Due(10, 1)
    assert call(server, "a", 2, Due(5, 1), now=START) == Due(15, 2)
    assert call(server, "a", 1, Due(10, 1), now=START) == Due(15, 2)
    assert call(server, "b", 1, Due(1, 1), now=START) == Due(16, 3)


def test_where_nothing_is_owed_nothing_is_kept_of_the_tenant(server: Redis) -> None:
    server.flushall()
    whole, told = quota_keys("test", "team-a", "a")
    call(server, "a", 1, Due(10, 1), now="")
    assert 10 <= server.ttl(whole) <= 12
    assert 50 <= server.ttl(told) <= 60
    assert call(server, "a", 2, Due(-10, -1), now="") == Due(0, 0)
    assert not server.exists(whole)


def test_both_keys_of_a_call_lie_in_one_slot_and_carry_prefix_and_tenant() -> None:
    whole, told = quota_keys("extproc", "team-a", "host-1")
    assert whole.startswith("{extproc:q:team-a}:")
    assert key_slot(whole.encode()) == key_slot(told.encode())
