"""The controllers that are compared, by name: what defines each is here, what was tuned about it in `tuned.json`."""

from __future__ import annotations

from extproc.config import ControllerName
from extproc.errors import ExtprocError
from extproc.sim.world.laws import Gate, Open
from extproc.sim.world.setup import Setup
from extproc.sim.world.tuned import as_tuned, load

_QUEUED = {
    "queues": [
        {"priority": 0, "name": "first", "maxQueueSize": 200, "timeout": "8s", "dropPolicy": "tail"},
        {"priority": 1, "name": "second", "maxQueueSize": 500, "timeout": "15s", "dropPolicy": "tail"},
        {"priority": 2, "name": "third", "maxQueueSize": 1000, "timeout": "60s", "dropPolicy": "tail"},
    ]
}
"""Strict priority queues that refuse only who has waited too long."""

_SETUPS = (
    Setup("none", law=Open()),
    Setup("fixed", pool={"controllers": ["fixed"]}),
    Setup("watermark", pool={"controllers": ["watermark"]}),
    Setup("vegas", pool={"controllers": ["vegas"]}),
    Setup("pid", pool={"controllers": ["pid"]}),
    Setup("gate", policy=_QUEUED, pool={"engines": {"scrapeInterval": "50ms"}}, law=Gate()),
)


class UnknownName(ExtprocError):
    """A controller or scenario that there is not; the message names those that there are."""


def setups() -> dict[str, Setup]:
    """By name, in the order of reports: the baselines as tuned, then what needs no tuning."""
    known = {setup.name: setup for setup in _SETUPS}
    for name, tunings in load().controllers.items():
        known[name] = as_tuned(known[name], tunings)
    for name in ControllerName:
        known.setdefault(name.value, Setup(name.value, pool={"controllers": [name.value]}))
    return known


def untuned(name: str) -> Setup:
    """A baseline at its defaults. KeyError for others."""
    return {setup.name: setup for setup in _SETUPS}[name]


def setup_named(name: str) -> Setup:
    known = setups()
    if name not in known:
        raise UnknownName(f"--controller: expected some of {', '.join(known)}, got {name!r}")
    return known[name]
