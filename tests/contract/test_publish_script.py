"""`publish.lua`: who leads, on a real server with a clock of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from redis import Redis

from extproc.model import Load, Pace, PoolState
from extproc.state.scripts import Reign, Script, keys_of, pack_state, read_reign, read_state
from tests.support import valkey
from tests.support.pools import limited, reserving

PUBLISH = Script("publish")
KEYS = keys_of("test", "pool")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with valkey.running(tmp_path_factory.mktemp("v")) as running, running.client() as client:
        yield client


@pytest.fixture(autouse=True)
def empty(server: Redis) -> None:
    server.flushall()


def publish(client: Redis, owner: str, token: int, *, now: float | str, state: PoolState | None = None) -> Reign:
    packed, fingerprint = (b"", "") if state is None else pack_state(state)
    arguments = (str(now), owner, token, 0.7, packed, fingerprint, KEYS.channel, 1)
    return read_reign(client.eval(PUBLISH.text, 2, KEYS.facts, KEYS.demand, *arguments))


def in_force(client: Redis) -> PoolState:
    packed = client.hget(KEYS.facts, "state")
    assert isinstance(packed, bytes)
    return read_state(packed, at=0.0)


def test_the_first_takes_the_lead_and_the_second_waits_for_its_end(server: Redis) -> None:
    first = publish(server, "a", 0, now=100.0, state=limited(1))
    assert first.led
    second = publish(server, "b", 0, now=100.5, state=limited(2))
    assert not second.led
    assert second.lead_s == pytest.approx(0.2)
    assert in_force(server) == limited(1)
    third = publish(server, "b", 0, now=100.71, state=limited(2))
    assert third.led
    assert read_state(third.found, at=0.0) == limited(1), "who takes the lead learns what was in force"
    assert publish(server, "b", third.token, now=100.8).found == b""
    assert in_force(server) == limited(2)


def test_a_pace_comes_with_the_state(server: Redis) -> None:
    paced = replace(limited(1), pace=Pace(1000.0, (30.0, 20.0, 10.0)))
    publish(server, "a", 0, now=100.0, state=paced)
    assert in_force(server) == paced


def test_who_lost_the_lead_writes_no_more_with_its_old_token(server: Redis) -> None:
    old = publish(server, "a", 0, now=100.0)
    new = publish(server, "b", 0, now=101.0, state=limited(2))
    assert new.token > old.token
    assert not publish(server, "a", old.token, now=101.1, state=limited(9)).led
    assert in_force(server) == limited(2)


def test_owner_and_token_must_both_match(server: Redis) -> None:
    token = publish(server, "a", 0, now=100.0, state=limited(1)).token
    assert not publish(server, "a", token - 1, now=100.1, state=limited(9)).led
    assert not publish(server, "b", token, now=100.1, state=limited(9)).led
    assert publish(server, "a", token, now=100.1).led
    assert in_force(server) == limited(1)


def test_tokens_rise_over_the_loss_of_everything(server: Redis) -> None:
    before = publish(server, "a", 0, now=100.0).token
    server.flushall()
    assert publish(server, "b", 0, now=100.01).token > before


def test_without_a_clock_of_ours_the_servers_holds(server: Redis) -> None:
    assert publish(server, "a", 0, now="").led
    assert not publish(server, "b", 0, now="").led
    assert 0 < server.ttl(KEYS.facts) <= 120


def test_a_state_comes_back_as_it_was() -> None:
    state = replace(
        reserving(limited(7), p0=2, p1=1),
        rejection=(0.0, 0.25, 1.0),
        saturation=0.7,
        reason="fixed+watermark",
        at=12.5,
        engines_reporting=2,
        engine_max_tokens=20_000,
        expected_output_tokens=81.5,
        expected_ttft_s=0.4,
    )
    assert read_state(pack_state(state)[0], at=12.5) == state
    assert pack_state(state)[1] == pack_state(replace(state, at=13.0))[1]
    assert pack_state(state)[1] != pack_state(replace(state, limits=(Load(1, 1),) * 3))[1]
