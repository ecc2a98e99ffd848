"""The whole thing put together: engines, router, one service or several, clients, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from extproc.admission import Admission
from extproc.clock import Clock, LoopClock
from extproc.model import End, Outcome, Priority
from extproc.pools import Pools
from extproc.ports import WireEvent
from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.client import Attempt, Persistence
from extproc.sim.world.machine import Machine
from extproc.sim.world.record import Diary, Record
from extproc.sim.world.router import Router
from extproc.sim.world.scenario import Scenario
from extproc.sim.world.scraping import VirtualScraper
from extproc.sim.world.setup import Setup, engine_names, policy_of
from extproc.sim.world.traffic import Arrival
from extproc.wire.sampling import Places


class Unseen:
    """Implements `ports.Observer`: clients know best what became of them."""

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None: ...

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None: ...

    def wire(self, event: WireEvent) -> None: ...

    def scraped(self, engine: str, result: str, *, took_s: float) -> None: ...


@dataclass(slots=True)
class Replica:
    """One process of the service."""

    pools: Pools
    places: Places
    clock: Clock
    task: asyncio.Task[None] | None = None


class World:
    """Implements `client.Gateway`. Made inside a virtual-time loop."""

    def __init__(self, scenario: Scenario, setup: Setup, *, spec: EngineSpec, seed: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.persistence: Persistence = scenario.persistence
        self.random = Random(f"{seed}/clients")
        self.knows_lengths = setup.knows_lengths
        self.diary = Diary()
        self._seed = seed
        self._setup = setup
        self._policy = policy_of(setup, scenario)
        names = [engine_names(scenario, pool) for pool in range(scenario.pools)]
        self.machines = {
            name: Machine(name, spec, self.loop, generated=self.diary.came) for pool in names for name in pool
        }
        self._routers = [
            Router([self.machines[name] for name in pool], Random(f"{seed}/router/{index}"))
            for index, pool in enumerate(names)
        ]
        self.replicas: list[Replica] = []
        self._turn = 0
        for _ in range(scenario.replicas):
            self.add_replica()

    def add_replica(self) -> None:
        number = len(self.replicas)
        clock = LoopClock(self.loop)
        pools = Pools(
            self._policy,
            scrape=True,
            clock=clock,
            observer=Unseen(),
            random=Random(f"{self._seed}/replica/{number}"),
            watch=partial(VirtualScraper, machines=self.machines),
        )
        if self._setup.law is not None:
            for pool in self._policy.pools:
                pools.control(pool.name).use(self._setup.law)
        replica = Replica(pools, Places(), clock)
        replica.task = self.loop.create_task(pools.run())
        self.replicas.append(replica)

    # -- what an attempt meets

    def admission(self, attempt: Attempt) -> Admission | None:
        self._turn += 1
        attempt.replica = self._turn % len(self.replicas)
        return self.replicas[attempt.replica].pools.admission

    def router(self, arrival: Arrival) -> Router:
        return self._routers[arrival.pool]

    def places(self, attempt: Attempt) -> Places:
        return self.replicas[attempt.replica].places

    def kept(self, record: Record) -> None:
        self.diary.records.append(record)

    def refused(self, now: float) -> None:
        self.diary.refused[int(now)] += 1

    # -- the run

    async def run(self, arrivals: Sequence[Arrival], until_s: float) -> Diary:
        """Sends everything in time and lets it end, at the latest at `until_s`."""
        coming = iter(arrivals)

        def send(arrival: Arrival) -> None:
            if (following := next(coming, None)) is not None:
                self.loop.call_at(following.at_s, send, following)
            Attempt(self, arrival)

        if (first := next(coming, None)) is not None:
            self.loop.call_at(first.at_s, send, first)
        tasks = [replica.task for replica in self.replicas if replica.task is not None]
        done, _ = await asyncio.wait(tasks, timeout=until_s - self.loop.time(), return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()  # a bug in a loop of the service ends the run
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        machines = self.machines.values()
        self.diary.computed_tokens = sum(machine.prefilled_tokens + machine.generated_tokens for machine in machines)
        self.diary.preemptions = sum(machine.preemptions for machine in machines)
        return self.diary
