"""Envoy's part: the engine that an admitted request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.world.machine import Machine

NOTICED_S = 1.0
"""A dead engine gets requests for so long, which fail: until Envoy's health check has noticed."""


class Router:
    """Least request as Envoy does it: of two engines picked at random, the one with fewer requests open."""

    def __init__(self, machines: Sequence[Machine], random: Random) -> None:
        self._all = frozenset(machine.name for machine in machines)
        self._members = list(machines)
        self._random = random

    def serves(self, machine: Machine) -> bool:
        return machine.name in self._all

    def pick(self) -> Machine | None:
        """None: no engine is left."""
        members, random = self._members, self._random
        if not members:
            return None
        a, b = members[int(random.random() * len(members))], members[int(random.random() * len(members))]
        return a if a.open <= b.open else b

    def eject(self, machine: Machine) -> None:
        """No more requests go there; not if it has come back before anybody noticed."""
        if not machine.up:
            self._members.remove(machine)

    def restore(self, machine: Machine) -> None:
        if machine not in self._members:
            self._members.append(machine)
