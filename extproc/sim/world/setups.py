"""The controllers that are compared, by name. What is tuned about the baselines is in one place here."""

from __future__ import annotations

import math

from extproc.config import ControllerName
from extproc.errors import ExtprocError
from extproc.sim.world.laws import Constant, Gate
from extproc.sim.world.setup import Setup

_QUEUED = {
    "queues": [
        {"priority": 0, "name": "first", "maxQueueSize": 200, "timeout": "8s", "dropPolicy": "tail"},
        {"priority": 1, "name": "second", "maxQueueSize": 500, "timeout": "15s", "dropPolicy": "tail"},
        {"priority": 2, "name": "third", "maxQueueSize": 1000, "timeout": "60s", "dropPolicy": "tail"},
    ]
}
"""Strict priority queues that refuse only who has waited too long."""

_SETUPS = (
    Setup("none", law=Constant((math.inf, math.inf, math.inf))),
    Setup("fixed", pool={"controllers": ["fixed"]}, requests=200),
    Setup("watermark", pool={"controllers": ["watermark"]}),
    Setup("vegas", pool={"controllers": ["vegas"]}),
    Setup("pid", pool={"controllers": ["pid"]}),
    Setup("gate", policy=_QUEUED, pool={"engines": {"scrapeInterval": "50ms"}}, law=Gate()),
)


class UnknownName(ExtprocError):
    """A controller or scenario that there is not; the message names those that there are."""


def setups() -> dict[str, Setup]:
    """By name, in the order of reports: those that need tuning last."""
    known = {setup.name: setup for setup in _SETUPS}
    for name in ControllerName:
        known.setdefault(name.value, Setup(name.value, pool={"controllers": [name.value]}))
    return known


def setup_named(name: str) -> Setup:
    known = setups()
    if name not in known:
        raise UnknownName(f"--controller: expected some of {', '.join(known)}, got {name!r}")
    return known[name]
