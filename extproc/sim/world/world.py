"""The whole thing put together: engines, router, one service or several, clients, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from extproc.admission import Admission
from extproc.model import End, Outcome, Priority
from extproc.pools import Pools
from extproc.ports import WireEvent
from extproc.sim.engine_spec import EngineSpec
from extproc.sim.world.client import Attempt, Persistence
from extproc.sim.world.clocks import SkewedClock
from extproc.sim.world.machine import Machine
from extproc.sim.world.record import Diary, Fate, Record
from extproc.sim.world.router import Router
from extproc.sim.world.scenario import Scenario
from extproc.sim.world.scraping import VirtualScraper
from extproc.sim.world.setup import Setup, engine_names, policy_of
from extproc.sim.world.store import Shares, VirtualLine, VirtualStore
from extproc.sim.world.traffic import Arrival
from extproc.wire.sampling import Places

_LOOK_EVERY_S = 1.0


class Unseen:
    """Implements `ports.Observer`: clients know best what became of them."""

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None: ...

    def retried(self, priority: Priority, pool: str) -> None: ...

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None: ...

    def wire(self, event: WireEvent) -> None: ...

    def scraped(self, engine: str, result: str, *, took_s: float) -> None: ...


@dataclass(slots=True)
class Replica:
    """One process of the service."""

    pools: Pools
    places: Places
    clock: SkewedClock
    line: VirtualLine
    task: asyncio.Task[None]
    waiting: dict[Attempt, None] = field(default_factory=dict)
    """Whose verdict it owes, in order."""
    alive: bool = True


class World:
    """Implements `client.Gateway`. Made inside a virtual-time loop."""

    def __init__(self, scenario: Scenario, setup: Setup, *, spec: EngineSpec, seed: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.persistence: Persistence = scenario.persistence
        self.random = Random(f"{seed}/clients")
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
        self.store = VirtualStore(self.loop)
        self.replicas: list[Replica] = []
        self._shares = scenario.replicas > 1
        self._rates = scenario.clock_rates
        self._turn = 0
        self._undecided = 0
        """Attempts that have no verdict yet, and those to come."""
        self._inside = 0
        """Attempts that have been let in and have not ended."""
        self._empty = asyncio.Event()
        for _ in range(scenario.replicas):
            self.add_replica()

    def add_replica(self) -> None:
        number = len(self.replicas)
        rate = self._rates[number] if number < len(self._rates) else 1.0
        clock = SkewedClock(self.loop, rate=rate, offset_s=1000.0 * number)
        line = VirtualLine(self.store)
        pools = Pools(
            self._policy,
            scrape=True,
            clock=clock,
            observer=Unseen(),
            wall=self.loop.time,
            store=Shares(f"replica-{number}", line, clock) if self._shares else None,
            watch=partial(VirtualScraper, machines=self.machines),
        )
        if self._setup.law is not None:
            for pool in self._policy.pools:
                pools.control(pool.name).use(self._setup.law)
        self.replicas.append(Replica(pools, Places(), clock, line, self.loop.create_task(pools.run())))

    def kill_replica(self, number: int) -> None:
        """Nothing of it is said to anybody any more; Envoy lets its requests pass."""
        replica = self.replicas[number]
        replica.alive, replica.line.dead = False, True
        replica.task.cancel()
        waiting, replica.waiting = list(replica.waiting), {}
        for attempt in waiting:
            attempt.pass_by()

    # -- what an attempt meets

    def router_of(self, machine: Machine) -> Router:
        return next(router for router in self._routers if router.serves(machine))

    def admission(self, attempt: Attempt) -> Admission | None:
        living = [replica for replica in self.replicas if replica.alive]
        self._turn += 1
        attempt.replica = living[self._turn % len(living)] if living else None
        return attempt.replica.pools.admission if attempt.replica else None

    def router(self, arrival: Arrival) -> Router:
        return self._routers[arrival.pool]

    def began(self, record: Record) -> None:
        self.diary.records.append(record)
        self._undecided += 1

    def let_in(self) -> None:
        self._undecided -= 1
        self._inside += 1
        self._empty.clear()

    def ended(self, record: Record) -> None:
        if record.admitted_at is None:
            self._undecided -= 1
        else:
            self._inside -= 1
            if not self._inside:
                self._empty.set()
        if record.fate is Fate.REFUSED:
            self.diary.refused[int(self.loop.time())] += 1

    def retry(self, arrival: Arrival, attempt: int, *, after_s: float) -> None:
        self._undecided += 1
        self.loop.call_later(after_s, self._again, arrival, attempt)

    def _again(self, arrival: Arrival, attempt: int) -> None:
        self._undecided -= 1
        Attempt(self, arrival, attempt)

    # -- the run

    async def run(self, arrivals: Sequence[Arrival], *, at_most_s: float) -> Diary:
        """Sends everything in time and lets it end, at the latest at `at_most_s`."""
        if arrivals:
            self._undecided += 1
            self.loop.call_at(arrivals[0].at_s, self._send, arrivals, 0)
        while self._undecided and self.loop.time() < at_most_s:
            await asyncio.sleep(_LOOK_EVERY_S)
            for replica in self.replicas:
                if replica.alive and replica.task.done():
                    replica.task.result()  # a bug in a loop of the service ends the run
                    raise AssertionError("a replica has ended by itself")
        for replica in self.replicas:  # nothing is left to decide; what runs runs out
            replica.task.cancel()
        await asyncio.gather(*(replica.task for replica in self.replicas), return_exceptions=True)
        if self._inside:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), at_most_s - self.loop.time())
        machines = self.machines.values()
        self.diary.computed_tokens = sum(machine.prefilled_tokens + machine.generated_tokens for machine in machines)
        self.diary.preemptions = sum(machine.preemptions for machine in machines)
        return self.diary

    def _send(self, arrivals: Sequence[Arrival], index: int) -> None:
        if index + 1 < len(arrivals):
            self.loop.call_at(arrivals[index + 1].at_s, self._send, arrivals, index + 1)
        else:
            self._undecided -= 1
        Attempt(self, arrivals[index])
