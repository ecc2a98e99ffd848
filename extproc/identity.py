"""Whose request it is, as far as a level goes: bytes that stay the same when a client tries again. Pure.

The first that is there decides:

1. tenant and session, where the policy trusts a header to name one (`trust.session`);
2. tenant and body, where the verdict had to wait for the body: its length and its end;
3. tenant, announced length and source address: the last hop that Envoy itself saw.

Nothing else is looked at: no request id, no count of retries, no path, no other header, for a client could write a new one
at each attempt and so draw again until it is lucky. A client that changes its request has another request, and clients
that send the same request look alike; only a trusted session tells who is who.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address

from msgspec import Struct

from extproc.model import Tenant
from extproc.request import RequestHead

_END_BYTES = 256
"""Of a body: conversations begin alike and end differently, and a hash of a megabyte takes a millisecond."""
_HOST_BITS = 64
"""Of an IPv6 address: one client has them all, and writes them as it likes."""


class Sender(Struct, frozen=True, gc=False):
    """`one_client`: the key is one client's own; else several may look alike."""

    key: bytes
    one_client: bool = False


class Identity:
    """The keys of one policy. `session_header`: in lower case; None: nobody names sessions."""

    __slots__ = ("_session_header",)

    def __init__(self, session_header: str | None) -> None:
        self._session_header = session_header

    def sender(self, head: RequestHead, tenant: Tenant, body: bytes | None) -> Sender:
        """`body` None: not here yet, or never."""
        headers = head.headers
        if self._session_header is not None and (session := headers.get(self._session_header)):
            return Sender(f"{tenant.name}\0s\0{session}".encode("utf-8", "surrogatepass"), one_client=True)
        if body is not None:
            return Sender(f"{tenant.name}\0b\0{len(body)}\0".encode("utf-8", "surrogatepass") + body[-_END_BYTES:])
        length = headers.get("content-length", "")
        return Sender(f"{tenant.name}\0a\0{length}\0{source(headers)}".encode("utf-8", "surrogatepass"))


def source(headers: Mapping[str, str]) -> str:
    """Who was connected to Envoy, or to the last proxy before it: the hop that was added last. IPv6: its network."""
    address = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    if address.count(":") < 2:
        return address.partition(":")[0]  # some proxies add the port, which is another at each connection
    try:
        whole = IPv6Address(address.partition("]")[0].removeprefix("["))
    except ValueError:
        return address
    return str(whole.ipv4_mapped or f"{int(whole) >> _HOST_BITS:x}")
