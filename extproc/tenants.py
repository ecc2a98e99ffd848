"""Who pays for a request: from Envoy's metadata, an API key or a trusted header to a tenant. Pure.

Keys are never kept, only their SHA-256: what a policy, a log or a memory dump shows opens nothing.
"""

from __future__ import annotations

import math
from hashlib import sha256

from extproc.config import Auth, Policy, QuotaPolicy, TenantPolicy
from extproc.model import DEFAULT_TENANT, Allowance, Tenant
from extproc.request import RequestHead

TENANT_HEADER = "x-tenant-id"
KEY_PREFIX = "sha256:"
_LONGEST_NAME = 64


class Tenants:
    """A policy's tenants, prepared once per policy.

    The first that is there decides: Envoy's metadata, the API key, the trusted header. A name that the policy does not
    list is a tenant of weight 1 all the same. Without any of them the tenant is `default`, or, where `auth` is
    `required`, nobody.
    """

    def __init__(self, policy: Policy) -> None:
        self._listed = {tenant.name: tenant_of(tenant) for tenant in policy.tenants}
        self._by_digest = {
            bytes.fromhex(key.removeprefix(KEY_PREFIX)): self._listed[tenant.name]
            for tenant in policy.tenants
            for key in tenant.keys
        }
        self._metadata = policy.trust.tenant_metadata
        self._trusts_header = TENANT_HEADER in policy.trust.headers
        self._default = self._listed.get(DEFAULT_TENANT.name, DEFAULT_TENANT)
        self._required = policy.auth is Auth.REQUIRED
        self._trivial = not (self._by_digest or self._metadata or self._trusts_header or self._required)

    def resolve(self, head: RequestHead) -> Tenant | None:
        """None: nobody we know, and the policy wants to know."""
        if self._trivial:
            return self._default
        tenant = self._of_metadata(head) or self._of_key(head) or self._of_header(head)
        if tenant is None and not self._required:
            return self._default
        return tenant

    def _of_metadata(self, head: RequestHead) -> Tenant | None:
        if self._metadata is None or head.metadata is None:
            return None
        return self._named(head.metadata(self._metadata.namespace, self._metadata.path))

    def _of_header(self, head: RequestHead) -> Tenant | None:
        return self._named(head.headers.get(TENANT_HEADER)) if self._trusts_header else None

    def _of_key(self, head: RequestHead) -> Tenant | None:
        """Constant-time in what matters: a look-up by SHA-256 compares digests, whose prefix nobody can choose."""
        key = presented_key(head)
        if key is None or not self._by_digest:
            return None
        return self._by_digest.get(sha256(key.encode("utf-8", "surrogatepass")).digest())

    def _named(self, name: str | None) -> Tenant | None:
        if not name:
            return None
        return self._listed.get(name) or Tenant(bounded_name(name))


def tenant_of(policy: TenantPolicy) -> Tenant:
    return Tenant(policy.name, policy.weight, None if policy.quota is None else allowance_of(policy.quota))


def allowance_of(quota: QuotaPolicy) -> Allowance:
    tokens, requests = quota.tokens_per_minute, quota.requests_per_minute
    return Allowance(
        tokens_per_s=math.inf if tokens is None else tokens / 60,
        requests_per_s=math.inf if requests is None else requests / 60,
        burst_s=float(quota.burst_s),
    )


def presented_key(head: RequestHead) -> str | None:
    """The API key a client sent: `authorization: Bearer`, as OpenAI's clients do, or `x-api-key`, as Anthropic's."""
    scheme, _, credential = head.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return head.headers.get("x-api-key") or None


def bounded_name(name: str) -> str:
    """A name of a bounded length that is still one tenant's own."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:40]}~{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
