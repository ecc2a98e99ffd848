"""What the policy says of requests: who sends them and what these may use, how much they matter, how long they wait."""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, UnsetType, field

from extproc.config.section import Seconds, Section
from extproc.model import Priority


class Auth(StrEnum):
    OPTIONAL = "optional"
    REQUIRED = "required"


class DeadlineUnit(StrEnum):
    S = "s"
    MS = "ms"
    GRPC = "grpc"


class QuotaPolicy(Section, frozen=True):
    """What a tenant may use, over all replicas and pools. What is above it is refused with the outcome `quota`.

    It refills steadily. A request reserves its estimated cost when it comes, which it gets back where it is not served."""

    tokens_per_minute: int | None = None
    """Prompt and output tokens, as estimated. At least 1. Default: not limited."""
    requests_per_minute: int | None = None
    """Requests. At least 1. Default: not limited."""
    burst_s: Seconds = field(name="burst", default=Seconds(60.0))
    """After a pause so much time's worth may be used at once: 60s is a whole minute's, 1s spreads the use evenly. A request
    that takes more may go when nothing is owed, and is paid off afterwards. 1s to 1h, default 60s."""


class TenantPolicy(Section, frozen=True):
    """Who pays, and what it may."""

    name: str
    """Its name. Required, each once; `default` is whoever does not say who it is."""
    weight: float = 1.0
    """Its share of a contended priority, in proportion to the other tenants' weights. Above 0, default 1."""
    keys: tuple[str, ...] = ()
    """Its API keys, each as `sha256:` and 64 hexadecimal digits (`printf %s KEY | sha256sum`). Default none."""
    priority: Priority | UnsetType = UNSET
    """Of its requests, where neither a trusted header nor a rule says. Default P1."""
    quota: QuotaPolicy | None = None
    """What it may use per minute. Default: what there is."""


class MetadataPolicy(Section, frozen=True):
    """Where Envoy's dynamic metadata names the tenant, such as a claim that `jwt_authn` verified."""

    namespace: str = "envoy.filters.http.jwt_authn"
    """The filter that wrote it. Must be among the ext_proc filter's forwarding namespaces."""
    path: tuple[str, ...] = ()
    """Keys down to the text, such as [payload, sub]. Required."""


class TrustPolicy(Section, frozen=True):
    """Which of a client's headers are believed."""

    headers: tuple[str, ...] = ()
    """Of `x-priority` (P0, P1, P2 or a queue's name) and `x-tenant-id` (a tenant's name). Default none."""
    tenant_metadata: MetadataPolicy | None = None
    """Where Envoy's own metadata names the tenant. Default nowhere."""
    session: str | None = None
    """The header in which your gateway names a user's session. Who is refused outright is then decided per session, about
    a minute at a time, so that nobody gets another verdict by sending another request. Default none: per request."""

    @property
    def names_tenants(self) -> bool:
        """Not only keys say who a tenant is."""
        return self.tenant_metadata is not None or "x-tenant-id" in {name.lower() for name in self.headers}


class When(Section, frozen=True):
    """Conditions of a rule; all that are given must hold. At least one."""

    path: str | None = None
    """The path without its query; a trailing `*` matches any rest."""
    header: dict[str, str] | None = None
    """Header name to value; the value `*` means present. Names in lower case."""
    model: str | None = None
    """The body's `model`."""
    service_tier: str | None = None
    """The body's `service_tier`."""
    tenant: str | None = None
    """The tenant's name."""


class ClassificationRule(Section, frozen=True):
    """The first rule that holds decides; what it leaves open the next ones decide."""

    when: When
    """What must hold for the rule to apply. Required."""
    priority: Priority | UnsetType = UNSET
    """The request's priority. Default: left to later rules, in the end P1."""
    pool: str | UnsetType = UNSET
    """The pool it goes to, by name. Default: left to later rules, in the end the pool of its model."""
    bypass: bool = False
    """True: pass untouched, uncounted in any limit. Default false."""


class DeadlineHeader(Section, frozen=True):
    """A request header that tells how long its sender waits for the first byte, from the request's arrival on."""

    name: str
    """The header, such as `x-request-timeout`, `grpc-timeout`, `x-envoy-expected-rq-timeout-ms`. Required."""
    unit: DeadlineUnit = DeadlineUnit.S
    """`s`, `ms`, or `grpc` for the format of `grpc-timeout` (`250m`, `5S`). Default s."""


class DeadlinesPolicy(Section, frozen=True):
    """Who cannot be answered in time is refused at once, and again when its turn comes.

    The SDKs' own `x-stainless-read-timeout` and `x-stainless-timeout` are always read; the smallest of all wins. Zero,
    negative and unreadable values are ignored."""

    headers: tuple[DeadlineHeader, ...] = ()
    """Further headers that are read. Default none."""
