"""Who pays: keys, metadata, trusted headers, nobody."""

from __future__ import annotations

from hashlib import sha256

import pytest

from extproc.config import parse_policy
from extproc.config.plain import masked, to_plain
from extproc.model import Tenant
from extproc.request import RequestHead
from extproc.tenants import Tenants

KEY = "sk-team-a-secret"
HASH = "sha256:" + sha256(KEY.encode()).hexdigest()
POLICY = f"""
tenants:
  - {{name: team-a, weight: 2, keys: ["{HASH}"]}}
  - {{name: team-b}}
"""


Headers = dict[str, str]
Words = dict[tuple[str, ...], str]


def resolve(policy: str, headers: Headers | None = None, *, metadata: Words | None = None) -> Tenant | None:
    look = None if metadata is None else lambda namespace, path: metadata.get((namespace, *path))
    return Tenants(parse_policy(policy)).resolve(
        RequestHead("POST", "/v1/chat/completions", headers or {}, metadata=look)
    )


@pytest.mark.parametrize(
    "headers",
    [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY} "}, {"x-api-key": KEY}],
)
def test_a_key_names_its_tenant(headers: dict[str, str]) -> None:
    assert resolve(POLICY, headers) == Tenant("team-a", 2)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": HASH},
        {"x-api-key": HASH},
    ],
)
def test_without_a_key_that_is_known_it_is_the_default_or_nobody(headers: dict[str, str]) -> None:
    assert resolve(POLICY, headers) == Tenant("default")
    assert resolve(POLICY + "auth: required", headers) is None


def test_a_tenant_header_is_believed_only_where_it_is_trusted() -> None:
    assert resolve(POLICY, {"x-tenant-id": "team-b"}) == Tenant("default")
    trusting = POLICY + "trust: {headers: [x-tenant-id]}"
    assert resolve(trusting, {"x-tenant-id": "team-b"}) == Tenant("team-b")
    assert resolve(trusting, {"x-tenant-id": "unheard-of"}) == Tenant("unheard-of")
    assert resolve(trusting, {"x-tenant-id": ""}) == Tenant("default")


def test_a_key_beats_the_header_and_metadata_beats_both() -> None:
    policy = POLICY + "trust: {headers: [x-tenant-id], tenantMetadata: {namespace: jwt, path: [payload, sub]}}"
    headers = {"authorization": f"Bearer {KEY}", "x-tenant-id": "team-b"}
    assert resolve(policy, headers) == Tenant("team-a", 2)
    assert resolve(policy, headers, metadata={("jwt", "payload", "sub"): "team-c"}) == Tenant("team-c")
    assert resolve(policy, headers, metadata={}) == Tenant("team-a", 2)


def test_long_names_are_bounded_and_stay_apart() -> None:
    trusting = "trust: {headers: [x-tenant-id]}"
    names = [resolve(trusting, {"x-tenant-id": "n" * 5000 + suffix}) for suffix in ("a", "b")]
    assert all(tenant is not None and len(tenant.name) <= 64 for tenant in names)
    assert names[0] != names[1]


def test_the_default_tenant_can_be_given_a_weight() -> None:
    assert resolve("tenants: [{name: default, weight: 0.5}]") == Tenant("default", 0.5)


def test_people_see_only_the_beginning_of_a_hash() -> None:
    shown = str(masked(to_plain(parse_policy(POLICY))))
    assert HASH not in shown
    assert HASH[:13] in shown
