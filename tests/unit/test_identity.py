"""Whose request it is: the same for a retry, and nothing that a client can write anew each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.identity import Identity, Sender, source
from extproc.model import DEFAULT_TENANT, Tenant
from extproc.request import RequestHead

PLAIN = Identity(None)
SESSIONS = Identity("x-session-id")


def head(path: str = "/v1/chat/completions", **headers: str) -> RequestHead:
    sent = {"content-length": "100", "x-forwarded-for": "10.0.0.1"}
    return RequestHead("POST", path, sent | {name.replace("_", "-"): value for name, value in headers.items()})


def key(request: RequestHead, tenant: Tenant = DEFAULT_TENANT, body: bytes | None = None) -> Sender:
    return PLAIN.sender(request, tenant, body)


@given(
    st.dictionaries(
        st.sampled_from(
            ("x-request-id", "x-stainless-retry-count", "traceparent", "user-agent", "x-envoy-attempt-count", "x-y")
        ),
        st.text("0123456789abcdef", max_size=8),
    )
)
def test_headers_that_a_client_can_make_up_change_nothing(made_up: dict[str, str]) -> None:
    for body in (None, b"{}"):
        plain = head()
        varied = RequestHead("POST", "/v1/chat/completions?x=1", {**plain.headers, **made_up}, request_id="7")
        assert key(varied, body=body) == key(plain, body=body)
        assert SESSIONS.sender(varied, DEFAULT_TENANT, body) == SESSIONS.sender(plain, DEFAULT_TENANT, body)


def test_hops_that_a_client_makes_up_change_nothing() -> None:
    assert key(head(x_forwarded_for="1.2.3.4, 5.6.7.8, 10.0.0.1")) == key(head())


def test_a_trusted_session_is_told_by_nothing_else() -> None:
    one = SESSIONS.sender(head(x_session_id="7"), DEFAULT_TENANT, None)
    assert one == SESSIONS.sender(
        head(x_session_id="7", content_length="9", x_forwarded_for="::1"), DEFAULT_TENANT, b"{}"
    )
    assert one.one_client
    assert one != SESSIONS.sender(head(x_session_id="8"), DEFAULT_TENANT, None)
    assert one != SESSIONS.sender(head(x_session_id="7"), Tenant("another"), None)


def test_without_a_session_the_body_tells_where_it_is_there() -> None:
    assert SESSIONS.sender(head(), DEFAULT_TENANT, b"{}") == key(
        head(content_length="9", x_forwarded_for=""), body=b"{}"
    )
    assert key(head(), body=b"{}") != key(head(), body=b"[]")
    assert key(head(), body=b"{" + b" " * 4000) != key(head(), body=b"[" + b" " * 4001)


def test_before_the_body_is_here_length_and_source_tell() -> None:
    assert not key(head()).one_client, "many may send the same from one place"
    assert key(head()) == key(head())
    others = [head(content_length="101"), head(x_forwarded_for="10.0.0.2"), RequestHead("POST", "/", {})]
    assert len({key(head()), key(head(), Tenant("another")), *map(key, others)}) == 5


def test_what_one_header_says_is_never_taken_for_another() -> None:
    assert key(head(content_length="1", x_forwarded_for="2.3.4.5")) != key(
        head(content_length="12", x_forwarded_for=".3.4.5")
    )


def test_an_ipv6_client_is_its_network() -> None:
    assert source({"x-forwarded-for": "2001:db8:1:2:3:4:5:6"}) == source({"x-forwarded-for": "2001:db8:1:2::9"})
    assert source({"x-forwarded-for": "2001:db8:1:2::9"}) != source({"x-forwarded-for": "2001:db8:1:3::9"})


def test_a_port_behind_the_address_does_not_count() -> None:
    assert source({"x-forwarded-for": "10.0.0.1:4711"}) == "10.0.0.1"


@pytest.mark.parametrize(
    "other", ["2001:db8::1:0:0:0", "2001:db8:0:0:1::", "2001:0db8::a:b:c:d", "[2001:db8::2]:4711", "[2001:db8::3]"]
)
def test_no_host_of_an_ipv6_network_has_another_level(other: str) -> None:
    """Zeros are left out where most of them stand, so that one network was written in two ways."""
    assert source({"x-forwarded-for": other}) == source({"x-forwarded-for": "2001:db8::1"})


def test_an_ipv4_client_of_an_ipv6_proxy_is_itself() -> None:
    """All of them were one client."""
    assert source({"x-forwarded-for": "::ffff:10.0.0.1"}) == "10.0.0.1"


@pytest.mark.parametrize("nonsense", ["", ":", "::::", "1:2:3", "fe80::1%eth0", "[::1", "unknown", "x" * 5000 + "::"])
def test_what_is_no_address_is_a_source_all_the_same(nonsense: str) -> None:
    assert isinstance(source({"x-forwarded-for": nonsense}), str)
