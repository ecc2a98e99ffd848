"""What each part of the controller `fused` is worth: whole, and with one part off at a time. What is off is said here, by what
the product does without it; the product has no switches for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from msgspec import structs

from extproc import log
from extproc import pace as paces
from extproc.config import ControllerName, FailurePolicy, PoolPolicy
from extproc.controllers.compose import CONTROLLERS
from extproc.controllers.fused import Fused, FusedMemory
from extproc.fleet import Fleet
from extproc.model import Demand, Pace, PoolState, Priority
from extproc.sim.world.run import Cell, Result, run_scenario
from extproc.sim.world.setup import Setup
from extproc.sim.world.setups import setup_named

WHOLE = "whole"
PLACES = (
    *(("sweep", 2.0), ("sweep", 5.0), ("1-step", 2.0), ("2-shift-tokens", 2.0), ("2-shift-requests", 0.7)),
    *(("4-cancel-storm", 2.0), ("5-engines-lost", 2.0), ("6-frozen-endpoint", 2.0), ("8-store-lost", 2.0)),
    *(("9-replicas", 2.0), ("10-tenant-flood", 2.0), ("11-bimodal", 2.0), ("small-cache", 2.0)),
    *(("6-delayed", 2.0), ("small-cache", 5.0), ("slow-cards", 2.0), ("restart", 2.0), ("bypass", 2.0)),
)
"""Scenario and load of each cell."""


@dataclass(frozen=True, slots=True)
class Part:
    """`memory`, `pace`: what is left of them without it. `fused`: settings that do without it. `room`: see `pace.room`."""

    name: str
    memory: Callable[[FusedMemory], FusedMemory] = lambda memory: memory
    pace: Callable[[Pace], Pace | None] = lambda pace: pace
    fused: Mapping[str, object] = field(default_factory=dict)
    room: Callable[..., float] = paces.room


def _level(pace: Pace) -> Pace:
    """P1's for all."""
    depth = pace.depths[Priority.P1]
    return Pace(pace.tokens_per_s, (depth, depth, depth), pace.lean)


_TABLE = (
    Part(WHOLE),
    Part("pace", pace=lambda _: None),
    Part("lean", lambda memory: replace(memory, lean=1.0)),
    Part("bias", lambda memory: replace(memory, bias=1.0)),
    Part("foreign", lambda memory: replace(memory, foreign=0.0)),
    Part("what has ended since", lambda memory: replace(memory, strangers=math.inf)),
    Part("engines that fell silent", lambda memory: replace(memory, engines=0.0)),
    Part("pressure", lambda memory: replace(memory, busy=0.0)),
    Part("headroom", fused={"headroom": 0.0}),
    Part("refusing late ones", fused={"refuseLate": False}),
    Part("a depth per priority", pace=_level),
    Part("room for whole prompts", room=lambda _priority, _tokens, *, depth: 0.0),  # noqa: ARG005 - as `pace.room`
)
PARTS: dict[str, Part] = {part.name: part for part in _TABLE}
"""By name; first `WHOLE`, which lacks nothing."""


class Without:
    """`fused` without a part; itself a `Controller`."""

    def __init__(self, part: Part, pool: PoolPolicy, failure: FailurePolicy) -> None:
        self._part = part
        self._pool = pool
        self._failure = failure
        self.memory = FusedMemory()

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        law = Fused(self._pool, self._failure, self.memory)
        law.step(now, fleet, demand=demand, previous=previous)
        self.memory = self._part.memory(law.memory)
        law = Fused(self._pool, self._failure, self.memory)
        # At the same time once more nothing is learned: it says what follows from what is left of the memory.
        state = law.step(now, fleet, demand=demand, previous=previous)
        return structs.replace(state, pace=None if state.pace is None else self._part.pace(state.pace))


@contextmanager
def off(part: Part) -> Iterator[None]:
    """Within it, all that this process makes a service of lacks the part: everything around it is the product's own."""
    fused, room = CONTROLLERS[ControllerName.FUSED], paces.room
    CONTROLLERS[ControllerName.FUSED] = lambda pool, failure, _: Without(part, pool, failure)
    paces.room = part.room
    try:
        yield
    finally:
        CONTROLLERS[ControllerName.FUSED], paces.room = fused, room


def run_without(job: tuple[Cell, str]) -> Result:
    """A cell without the part of this name."""
    log.setup(level="error")  # that a replica is cut off is no news here
    cell, name = job
    part = PARTS[name]
    with off(part):
        return run_scenario(cell, _setup(part))


def _setup(part: Part) -> Setup:
    setup = setup_named(ControllerName.FUSED)
    return replace(setup, name=part.name, pool={**setup.pool, "fused": part.fused})
