"""What goes wrong in a run, put on the loop: each kind of fault has a beginning and, mostly, an end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from extproc.sim.world.machine import Machine
from extproc.sim.world.router import NOTICED_S
from extproc.sim.world.scenario import Fault, FaultKind
from extproc.sim.world.store import Content
from extproc.sim.world.world import World


def schedule(world: World, faults: Sequence[Fault], *, from_s: float) -> None:
    """`from_s`: the run's time from which the faults count."""
    for fault in faults:
        begin, end = _acts(world, fault)
        world.loop.call_at(from_s + fault.at_s, begin)
        if end is not None:
            world.loop.call_at(from_s + fault.until_s, end)
        if fault.kind is FaultKind.STORE_FAILOVER:
            _fail_over(world, fault, from_s)


def _acts(world: World, fault: Fault) -> tuple[Callable[[], None], Callable[[], None] | None]:
    machines, store, value = list(world.machines.values()), world.store, fault.value
    part = machines[: math.ceil(value * len(machines))]
    match fault.kind:
        case FaultKind.ENGINES_GONE:
            gone = machines[: int(value)]
            return partial(_kill, world, gone), partial(_bring_back, world, gone)
        case FaultKind.ENGINE_SLOW:
            return partial(machines[0].slow_down, value), partial(machines[0].slow_down, 1.0)
        case FaultKind.METRICS_FROZEN:
            return partial(_pages, part, frozen=True), partial(_pages, part)
        case FaultKind.METRICS_SILENT:
            return partial(_pages, part, silent=True), partial(_pages, part)
        case FaultKind.METRICS_DELAYED:
            return partial(_pages, machines, delay_s=value), partial(_pages, machines)
        case FaultKind.METRICS_RARE:
            return partial(_pages, machines, every_s=value), partial(_pages, machines)
        case FaultKind.STORE_LOST | FaultKind.STORE_FAILOVER:
            return partial(setattr, store, "lost", True), partial(setattr, store, "lost", False)
        case FaultKind.STORE_SLOW:
            usual_s = store.round_trip_s
            return partial(setattr, store, "round_trip_s", value), partial(setattr, store, "round_trip_s", usual_s)
        case FaultKind.STORE_FLUSHED:
            return store.flush, None
        case FaultKind.REPLICA_KILLED:
            return partial(world.kill_replica, int(value)), None
        case FaultKind.REPLICA_ADDED:
            return world.add_replica, None
        case FaultKind.CLOCK_LEAPS:
            return partial(world.replicas[0].clock.leap, value), None
        case _ as never:
            assert_never(never)


def _kill(world: World, machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.die()
        world.loop.call_later(NOTICED_S, world.router_of(machine).eject, machine)


def _bring_back(world: World, machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.come_back()
        world.router_of(machine).restore(machine)


def _pages(
    machines: Sequence[Machine],
    *,
    frozen: bool = False,
    silent: bool = False,
    delay_s: float = 0.0,
    every_s: float = 0.0,
) -> None:
    """Of all these machines; a page has one fault at a time."""
    for machine in machines:
        page = machine.metrics
        page.frozen, page.silent, page.delay_s, page.every_s = frozen, silent, delay_s, every_s


def _fail_over(world: World, fault: Fault, from_s: float) -> None:
    """The copy that takes over has what the lost one had `value` seconds before."""
    kept: dict[str, Content] = {}

    def keep() -> None:
        kept.update(world.store.content())

    world.loop.call_at(from_s + fault.at_s - fault.value, keep)
    world.loop.call_at(from_s + fault.until_s, lambda: world.store.restore(kept))
