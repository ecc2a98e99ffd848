"""Which engines there are: the policy's `host:port` list, names resolved again every few seconds."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from extproc.errors import ConfigError, Problem

REFRESH_S = 5.0
"""Names are resolved this often: the usual time to live of a headless Kubernetes service is 30 s, of its pods'
readiness 10."""

RESOLVE_TIMEOUT_S = 3.0

_ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port to IP addresses. Raises `OSError` (also `TimeoutError`) where the name is not known."""


@dataclass(frozen=True, slots=True)
class Target:
    """One engine: what we call it, and where it is. `address` empty: its name has not been resolved yet."""

    name: str
    address: str
    port: int


def parse_endpoint(text: str) -> tuple[str, int]:
    """`host:port`, `1.2.3.4:port` or `[v6]:port`. Raises `ConfigError` for anything else."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536 or (match["v6"] and not _is_literal(match["v6"])):
        raise ConfigError("policy", [Problem("engines.static", f"expected host:port, got {text!r}")])
    return match["v6"] or match["host"], int(match["port"])


def format_endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def resolve(host: str, port: int) -> Sequence[str]:
    """By the system's resolver, in a thread."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


def _one_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Sorted, each once, of one family, IPv4 if there is any: a dual-stack host must not count as two engines."""
    unique = set(addresses)
    v4 = {address for address in unique if ":" not in address}
    return tuple(sorted(v4 or unique))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Discovery:
    """The targets of one pool. A name that stops resolving keeps its last addresses: DNS trouble is no engine
    trouble."""

    def __init__(self, static: Sequence[str], resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._addresses: dict[str, tuple[str, ...]] = {}
        self.use(static)

    def use(self, static: Sequence[str]) -> None:
        """A new list. Names that were on the old one keep their addresses."""
        known = self._addresses
        self._endpoints = {text: parse_endpoint(text) for text in static}
        self._addresses = {
            text: (host,) if _is_literal(host) else known.get(text, ()) for text, (host, _) in self._endpoints.items()
        }
        self._names = [text for text, (host, _) in self._endpoints.items() if not _is_literal(host)]

    @property
    def moves(self) -> bool:
        """Whether there is anything to resolve again."""
        return bool(self._names)

    @property
    def targets(self) -> tuple[Target, ...]:
        """In the policy's order, each name once. A host with one address keeps the name it has in the policy; of a host
        with several, each address is an engine, called `address:port`."""
        found: dict[str, Target] = {}
        for text, (_, port) in self._endpoints.items():
            addresses = self._addresses[text]
            if len(addresses) <= 1:
                found.setdefault(text, Target(text, addresses[0] if addresses else "", port))
            for address in addresses if len(addresses) > 1 else ():
                name = format_endpoint(address, port)
                found.setdefault(name, Target(name, address, port))
        return tuple(found.values())

    async def refresh(self) -> None:
        """Resolves every name once, all at the same time. Never raises for a name that is not known."""
        await asyncio.gather(*(self._refresh(text, *self._endpoints[text]) for text in self._names))

    async def _refresh(self, text: str, host: str, port: int) -> None:
        try:
            addresses = _one_family(await self._resolve(host, port))
        except (OSError, UnicodeError):  # UnicodeError: a label too long for a host name
            return
        if addresses and text in self._addresses:  # the list may have changed meanwhile
            self._addresses[text] = addresses
