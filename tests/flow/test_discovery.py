"""From the policy's list of engines to addresses, with a resolver that a test controls. Virtual time."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from extproc.engines.discovery import Discovery, Target, parse_endpoint
from extproc.errors import ConfigError
from extproc.sim.virtual_time import run_virtual


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8000", ("10.0.0.1", 8000)),
        ("vllm-0.svc:80", ("vllm-0.svc", 80)),
        ("[::1]:8000", ("::1", 8000)),
    ],
)
def test_endpoints(text: str, expected: tuple[str, int]) -> None:
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    "text", ["", "host", ":8000", "host:", "host:0", "host:65536", "::1:80", "http://a:80", "[a:1"]
)
def test_what_is_no_endpoint_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        parse_endpoint(text)


class _Names:
    """A resolver that knows what it is told."""

    def __init__(self, **known: list[str]) -> None:
        self.known = known

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if host not in self.known:
            raise socket.gaierror("unknown")
        return self.known[host]


def _refreshed(discovery: Discovery) -> tuple[Target, ...]:
    run_virtual(discovery.refresh())
    return discovery.targets


def test_addresses_need_no_resolver() -> None:
    discovery = Discovery(("10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.1:8000"), _Names())
    assert not discovery.moves
    assert discovery.targets == (
        Target("10.0.0.1:8000", "10.0.0.1", 8000),
        Target("[fd00::1]:8000", "fd00::1", 8000),
    )


def test_a_host_with_one_address_keeps_its_name() -> None:
    discovery = Discovery(("a:80",), _Names(a=["10.0.0.7", "10.0.0.7"]))
    assert discovery.targets == (Target("a:80", "", 80),)
    assert _refreshed(discovery) == (Target("a:80", "10.0.0.7", 80),)


def test_each_address_of_a_name_is_an_engine() -> None:
    discovery = Discovery(("a:80", "b:81"), _Names(a=["10.0.0.9", "10.0.0.7"], b=["10.0.1.1"]))
    assert [target.name for target in _refreshed(discovery)] == ["10.0.0.7:80", "10.0.0.9:80", "b:81"]


def test_a_dual_stack_host_is_one_engine() -> None:
    discovery = Discovery(("localhost:80",), _Names(localhost=["::1", "127.0.0.1"]))
    assert _refreshed(discovery) == (Target("localhost:80", "127.0.0.1", 80),)


def test_ipv6_only_names() -> None:
    discovery = Discovery(("a:80",), _Names(a=["fd00::2", "fd00::1"]))
    assert [target.name for target in _refreshed(discovery)] == ["[fd00::1]:80", "[fd00::2]:80"]


def test_trouble_with_names_changes_nothing() -> None:
    names = _Names(a=["10.0.0.7"])
    discovery = Discovery(("a:80",), names)
    before = _refreshed(discovery)
    names.known["a"] = []
    assert _refreshed(discovery) == before
    del names.known["a"]
    assert _refreshed(discovery) == before
