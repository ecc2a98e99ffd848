"""Levels: the rate's share is refused, a retry meets its first verdict, and nobody bears it all."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.identity import Sender
from extproc.levels import ATTEMPTS, EPOCH_S, MOST_KEYS, Cut, Levels, digest, level
from extproc.model import Priority

SECRET = b"a policy's"
WALL_S = 1.8e9
keys = st.binary(max_size=40)
walls = st.floats(0, 4e9)
rates = st.floats(0.01, 0.99)


def level_of(key: bytes, wall_s: float, secret: bytes = SECRET) -> float:
    return level(digest(key, secret), wall_s)


def refused(
    levels: Levels, rate: float, key: bytes, *, now: float = 0.0, wall_s: float = WALL_S, one_client: bool = True
) -> bool:
    return levels.refuses(Priority.P1, rate, who=lambda: Sender(key, one_client), now=now, wall_s=wall_s)


def share(levels: Levels, rate: float, sent: list[bytes], *, now: float = 0.0, wall_s: float = WALL_S) -> float:
    verdicts = [refused(levels, rate, key, now=now, wall_s=wall_s) for key in sent]
    return sum(verdicts) / len(verdicts)


def numbered(count: int, name: str = "") -> list[bytes]:
    return [f"{name} {i}".encode() for i in range(count)]


@given(key=keys, wall_s=walls)
def test_a_level_is_a_share(key: bytes, wall_s: float) -> None:
    assert 0 <= level_of(key, wall_s) < 1


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.35, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("wall_s", [0.0, WALL_S, WALL_S + 31])
def test_of_many_keys_the_share_refused_is_the_rate(rate: float, wall_s: float) -> None:
    seen = share(Levels(SECRET), rate, numbered(5000), wall_s=wall_s)
    assert abs(seen - rate) < 3 * (rate * (1 - rate) / 5000) ** 0.5


@given(key=keys, wall_s=walls, after_s=st.floats(0, EPOCH_S / 2))
def test_a_level_turns_once_at_the_most_while_an_epoch_passes(key: bytes, wall_s: float, after_s: float) -> None:
    seen = [level_of(key, wall_s + after_s * step / 8) for step in range(16)]
    assert len(set(seen)) <= 2


def test_a_retry_meets_the_verdict_of_its_first_attempt() -> None:
    """Seven seconds later, all but those whose minute ended meanwhile."""
    levels, sent = Levels(SECRET), numbered(2000)
    first, again = ([refused(levels, 0.4, key, now=at_s, wall_s=WALL_S + at_s) for key in sent] for at_s in (0.0, 7.0))
    assert sum(a != b for a, b in zip(first, again, strict=True)) / 2000 < 1.3 * 7 / EPOCH_S


def test_not_everybody_is_dealt_anew_at_the_same_second() -> None:
    sent = numbered(6000)
    for second in range(60):
        before, after = WALL_S + second, WALL_S + second + 1
        turned = sum(level_of(key, before) != level_of(key, after) for key in sent)
        assert 60 < turned < 145


@given(key=keys, first=st.integers(0, 10**8))
def test_over_epochs_each_key_bears_its_share_and_no_more(key: bytes, first: int) -> None:
    refused = [level_of(key, (first + epoch) * EPOCH_S) < 0.3 for epoch in range(50)]
    assert abs(sum(refused) - 15) <= 2
    assert not any(refused[i] and refused[i + 1] for i in range(49))


@given(key=keys, rate=rates, more=rates, history=st.lists(st.tuples(rates, rates), max_size=50))
def test_a_higher_rate_refuses_whom_a_lower_one_does(
    key: bytes, rate: float, more: float, history: list[tuple[float, float]]
) -> None:
    low, high = sorted((rate, more))
    verdicts = []
    for asked in (low, high):
        cut = Cut()
        for second, (before, at) in enumerate(history):
            cut.refuses(at, before, float(second))
        verdicts.append(cut.refuses(level_of(key, WALL_S), asked, len(history) + 1.0))
    assert verdicts[1] >= verdicts[0]


@given(key=keys, wall_s=walls, rate=rates)
def test_replicas_agree_and_other_secrets_do_not(key: bytes, wall_s: float, rate: float) -> None:
    one, other = Levels(SECRET), Levels(SECRET)
    assert share(one, rate, [key], wall_s=wall_s) == share(other, rate, [key], wall_s=wall_s, now=1e6)
    assert level_of(key, wall_s) != level_of(key, wall_s, b"another")


def test_no_tenant_is_blacked_out() -> None:
    """Tenants with a hundred sessions each, at any rate: Jain's index over what gets through is near 1."""
    for rate in (0.2, 0.5, 0.8):
        through = [1 - share(Levels(SECRET), rate, numbered(100, f"tenant {i}")) for i in range(50)]
        assert sum(through) ** 2 / (50 * sum(x * x for x in through)) > 0.94
        assert min(through) > 0


def test_a_rate_of_none_or_all_asks_for_no_key() -> None:
    def nobody() -> Sender:
        raise AssertionError("asked for")

    levels = Levels(SECRET)
    assert not levels.refuses(Priority.P0, 0.0, who=nobody, now=0.0, wall_s=WALL_S)
    assert levels.refuses(Priority.P0, 1.0, who=nobody, now=0.0, wall_s=WALL_S)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", range(10))
def test_a_hundred_that_look_alike_are_refused_at_the_rate(rate: float, name: int) -> None:
    """Whoever tries a gateway out sends the same request again and again, within a second."""
    levels = Levels(SECRET)
    verdicts = [refused(levels, rate, b"%d" % name, now=i / 200, one_client=False) for i in range(100)]
    assert abs(sum(verdicts) / 100 - rate) <= 0.12


@given(key=keys, rate=rates, wall_s=walls)
def test_as_many_attempts_as_one_client_makes_meet_one_verdict(key: bytes, rate: float, wall_s: float) -> None:
    levels = Levels(SECRET)
    seen = [refused(levels, rate, key, now=i / 9, wall_s=wall_s, one_client=False) for i in range(ATTEMPTS)]
    assert len(set(seen)) == 1
    assert seen[0] is refused(Levels(SECRET), rate, key, wall_s=wall_s)


def test_a_session_keeps_its_level_however_often_it_comes() -> None:
    levels = Levels(SECRET)
    assert len({refused(levels, 0.5, b"session", now=i / 1000) for i in range(900)}) == 1


def test_attempts_are_counted_per_epoch_and_in_bounded_memory() -> None:
    levels, other = Levels(SECRET), Levels(SECRET)
    for i in range(ATTEMPTS * 3):
        refused(levels, 0.5, b"busy", now=i / 1000, one_client=False)
    later = [refused(levels, 0.5, b"busy", now=EPOCH_S, one_client=False) for _ in range(ATTEMPTS)]
    assert later == [refused(other, 0.5, b"busy", now=EPOCH_S)] * ATTEMPTS
    for i in range(MOST_KEYS + 10):
        refused(levels, 0.5, b"%d" % i, now=EPOCH_S, one_client=False)
    assert len(levels._attempts) <= MOST_KEYS


def heavy(
    rate: float, of_all: float, heavy_level: float, *, per_s: float, seconds: int = 90
) -> tuple[list[float], list[float]]:
    """One key that sends `of_all` of the requests, the others all different: per second the share refused, and how many
    verdicts were not those of the rate."""
    random, cut = Random(5), Cut()
    shares, others = [], []
    for second in range(seconds):
        hits = other = 0
        for i in range(round(per_s)):
            now = second + i / per_s
            at = heavy_level if random.random() < of_all else random.random()
            verdict = cut.refuses(at, rate, now)
            hits += verdict
            other += verdict is not (at < rate)
        shares.append(hits / round(per_s))
        others.append(other / round(per_s))
    return shares, others


@pytest.mark.parametrize("per_s", [20, 200])
@pytest.mark.parametrize("rate", [0.2, 0.6])
@pytest.mark.parametrize("heavy_level", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("of_all", [0.5, 1.0])
def test_where_one_session_is_half_the_traffic_the_share_is_still_the_rate(
    rate: float, of_all: float, heavy_level: float, per_s: float
) -> None:
    shares, _ = heavy(rate, of_all, heavy_level, per_s=per_s)
    assert abs(sum(shares[30:]) / 60 - rate) < 0.03


@pytest.mark.parametrize("per_s", [5, 50, 500])
def test_chance_does_not_move_the_cut(per_s: float) -> None:
    """Otherwise retries would meet other verdicts, and replicas differ, for nothing."""
    _, others = heavy(0.4, 0.0, 0.0, per_s=per_s)
    assert sum(others) / len(others) < 0.015


def test_after_a_pause_old_debts_are_forgotten() -> None:
    cut = Cut()
    for second in range(60):
        for _ in range(100):
            assert not cut.refuses(1.0, 0.3, float(second) + 0.5)
    assert cut.refuses(0.9, 0.3, 60.1)
    assert not cut.refuses(0.31, 0.3, 3600.0)
    assert cut.refuses(0.29, 0.3, 3600.1)
