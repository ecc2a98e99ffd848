"""The upstream of `bench.replicas`: holds each request for a while, and remembers who was open when.

A request that extproc admitted carries its header; one that Envoy let by without it (`failure_mode_allow`) does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

GRACE_S = 0.25
"""So long after a limit fell, the old one still counts: it is on its way to everybody."""


@dataclass(slots=True)
class Arrival:
    """One request at the engine. `open_before`: admitted ones that were open when it came. `replica`: who admitted it."""

    at: float
    number: int
    priority: str
    admitted: bool
    open_before: int
    replica: str = ""


@dataclass(slots=True)
class SharedEngine:
    """`limits`: when which limit came into force, first of all the first."""

    hold_s: float
    address: str = ""
    open: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        admitted = "x-extproc-priority" in request.headers
        number = int(request.headers.get("x-number", "0"))
        now = asyncio.get_running_loop().time()
        priority = request.headers.get("x-extproc-priority", "")
        replica = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.arrivals.append(Arrival(now, number, priority, admitted, self.open, replica))
        self.open += admitted
        try:
            await request.read()
            await asyncio.sleep(self.hold_s if number > 0 else 0.0)
        finally:
            self.open -= admitted
        return web.json_response({"choices": []})

    def limit_at(self, at: float) -> int:
        """The limit in force; within `GRACE_S` of a fall still the one before."""
        in_force = self.limits[0][1]
        for since, limit in self.limits:
            if at >= since + (GRACE_S if limit < in_force else 0.0):
                in_force = limit
        return in_force

    @property
    def came(self) -> dict[int, Arrival]:
        """By number, those that nobody limits included."""
        return {arrival.number: arrival for arrival in self.arrivals}

    def since(self, start: float) -> Sequence[Arrival]:
        """Without those that nobody limits."""
        return [arrival for arrival in self.arrivals if arrival.at >= start and arrival.number > 0]


def late(arrivals: Sequence[Arrival], engine: SharedEngine) -> int:
    """Admitted requests that came while as many as the limit allows were open already."""
    return sum(a.admitted and a.open_before >= engine.limit_at(a.at) for a in arrivals)


def most_open(arrivals: Sequence[Arrival]) -> int:
    return max((a.open_before + a.admitted for a in arrivals), default=0)


@asynccontextmanager
async def shared_engine(hold_s: float) -> AsyncIterator[SharedEngine]:
    engine = SharedEngine(hold_s)
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", engine.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        engine.address = f"{host}:{port}"
        yield engine
    finally:
        await runner.cleanup()
