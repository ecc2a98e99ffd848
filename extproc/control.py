"""One loop per pool that turns samples and traffic into the pool's state. When to step lives here; what to decide does
not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from extproc.clock import Clock
from extproc.controllers.protocol import Controller
from extproc.model import PoolState
from extproc.ports import DemandSource, FleetSource, Publisher

PERIOD_S = 0.05
"""The longest time between two steps: samples that stop coming must be noticed too."""


class ControlLoop:
    """Steps on every new sample, at the latest after `PERIOD_S`, and publishes each state.

    Samples that arrive in the same turn of the event loop make one step; nothing waits for a tick. An exception in a
    step is a bug: it leaves `run`, so that the TaskGroup that owns the loop stops the service instead of letting it
    obey an old limit.
    """

    def __init__(
        self,
        controller: Controller,
        publisher: Publisher,
        *,
        fleet: FleetSource,
        demand: DemandSource,
        clock: Clock,
        initial: PoolState,
    ) -> None:
        self._controller = controller
        self._publisher = publisher
        self._fleet = fleet
        self._demand = demand
        self._clock = clock
        self._state = initial
        self._due = asyncio.Event()
        fleet.on_sample(self._due.set)

    @property
    def state(self) -> PoolState:
        """The last state published; `initial` before the first step."""
        return self._state

    def step(self) -> PoolState:
        """One decision, now. Called by `run`; callable before it, so that the first request already meets a
        decision."""
        now = self._clock.now()
        demand = replace(self._demand.demand(now), latencies=self._demand.take_latencies())
        self._state = self._controller.step(now, self._fleet.fleet(), demand=demand, previous=self._state)
        self._publisher.publish(self._state)
        return self._state

    def use(self, controller: Controller) -> None:
        """From now on this one decides: a new policy's."""
        self._controller = controller
        self.step()

    async def run(self, over: Callable[[], bool] = lambda: False) -> None:
        """Until cancelled, until a step raises, or until `over` holds, which is asked before each step."""
        while not over():
            self._due.clear()
            self.step()
            timer = self._clock.call_at(self._clock.now() + PERIOD_S, self._due.set)
            try:
                await self._due.wait()
            finally:
                timer.cancel()
