"""A request as it crosses the wire: what its headers and body tell, and what becomes of its headers. Values.

What is made of them, class and cost, is in `classify.py` and `cost.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

Metadata = Callable[[str, tuple[str, ...]], str | None]
"""Text at a path inside a namespace of Envoy's dynamic metadata; None where there is none."""


class RequestHead(Struct, frozen=True):
    """A request as its headers tell it. `headers`: lower-case names, the last value of each; pseudo headers are fields.

    The last, because hops append: where a name is repeated, the later value comes from the hop nearer to us, and a client's
    own `x-priority` must not win over the one that its gateway added.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    bodiless: bool = False
    request_id: str = ""
    metadata: Metadata | None = None
    """Envoy's own word on the request (of `jwt_authn`, say), which no client can write; None where Envoy sends none."""

    @property
    def content_length(self) -> int | None:
        """Bytes announced, None where absent (chunked) or not a number."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


class BodyFacts(Struct, frozen=True, gc=False):
    """What a request body says of its cost and class. None: the body does not say, or says nonsense (the engine will)."""

    model: str | None = None
    prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    sequences: int = 1
    service_tier: str | None = None
    stream: bool = False


class HeaderChanges(Struct, frozen=True, cache_hash=True):
    """Request headers to set and to remove before the engine sees them."""

    set: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()
