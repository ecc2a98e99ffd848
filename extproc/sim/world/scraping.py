"""The scraper of one pool without HTTP: engines take turns within the interval, pages arrive a moment after they were
asked for. What is made of a page is the real sampler's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from extproc.clock import Clock
from extproc.config import EnginesPolicy
from extproc.engines.sampler import Reading, Sampler
from extproc.engines.scraper import EngineStatus
from extproc.fleet import EngineSample, Fleet
from extproc.ports import Observer
from extproc.sim.world.machine import Machine

LAG_S = 0.01
"""From the question to the page: network, and the engine's own busy event loop."""
MOST_TURNS = 16
"""Engines share so many turns within an interval: those of one turn make one step of the controllers."""


class VirtualScraper:
    """Implements `pools.Engines` for machines known by name."""

    def __init__(
        self,
        policy: EnginesPolicy,
        *,
        stale_after_s: float,
        observer: Observer,
        clock: Clock,
        machines: Mapping[str, Machine],
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._machines = machines
        self._samplers: dict[str, Sampler] = {}
        self._samples: dict[str, EngineSample] = {}
        self._listeners: list[Callable[[], None]] = []
        self.use(policy, stale_after_s=stale_after_s)

    def use(self, policy: EnginesPolicy, *, stale_after_s: float) -> None:
        self._interval_s = policy.scrape_interval_s
        self._configured = tuple(policy.static)
        self._samplers = {name: Sampler(name, stale_after_s=stale_after_s) for name in self._configured}
        self._publish()

    def fleet(self) -> Fleet:
        return self._fleet

    def on_sample(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Nobody looks at this fleet's page."""
        return ()

    async def run(self) -> None:
        turns = min(MOST_TURNS, len(self._configured))
        loop = asyncio.get_running_loop()
        if not turns:
            await loop.create_future()
        start, turn = loop.time(), 0
        while True:
            names = self._configured[turn % turns :: turns]
            at, now = self._clock.now(), loop.time()
            pages = [(name, page) for name in names if (page := self._machines[name].metrics.read(now)) is not None]
            if pages:
                loop.call_later(LAG_S, self._arrived, at, pages)
            turn += 1
            await asyncio.sleep(start + turn * self._interval_s / turns - now)

    def _arrived(self, at: float, pages: list[tuple[str, Reading]]) -> None:
        for name, page in pages:
            self._samples[name] = self._samplers[name].sample(at, page)
        self._publish()

    def _publish(self) -> None:
        self._fleet = Fleet(self._configured, MappingProxyType(dict(self._samples)))
        for changed in self._listeners:
            changed()
