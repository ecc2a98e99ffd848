"""What the streams of one service have in common, and what they need of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from extproc.admission import Candidate, Pass
from extproc.clock import Clock
from extproc.config import EnvoyPolicy
from extproc.model import Rejection
from extproc.ports import Observer
from extproc.request import HeaderChanges, RequestHead
from extproc.tickets import Ticket, Waiting
from extproc.wire.connections import Connections
from extproc.wire.modes import Modes
from extproc.wire.pulse import LoopPulse
from extproc.wire.sampling import Places


class Gate(Protocol):
    """Admission as the wire sees it."""

    def arrive(self, head: RequestHead) -> Pass | Candidate | Rejection: ...

    def decide(self, candidate: Candidate, body: bytes | None) -> Ticket | Waiting | Rejection | Pass: ...

    def header_changes(self, ticket: Ticket) -> HeaderChanges: ...


class Context(Protocol):
    """What of `grpc.aio.ServicerContext` a stream uses. `read` returns `grpc.aio.EOF` at the end."""

    async def read(self) -> object: ...

    async def write(self, message: bytes) -> None: ...

    def peer(self) -> str: ...


@dataclass(slots=True)
class Shared:
    """What all streams of a service have in common."""

    gate: Callable[[], Gate]
    envoy: Callable[[], EnvoyPolicy]
    observer: Observer
    clock: Clock
    pulse: LoopPulse
    connections: Connections
    modes: Modes
    samples: Places = field(default_factory=Places)
    reads: set[asyncio.Task[object]] = field(default_factory=set)
    stopping: bool = False
    """Streams that end from now on are ended by us: their requests go on."""
