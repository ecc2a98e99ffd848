"""The record of the baselines' tuning: which settings were tried on which cells, with what result, and which were best.

`tuning.py` writes it, `setups.py` uses what it says. Settings are named `section.key`, as in a pool of the policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from extproc.sim.world.laws import Gate
from extproc.sim.world.run import Cell
from extproc.sim.world.setup import Setup

FILE = Path(__file__).parents[1] / "tuned.json"
Value = int | float | str | list[str]
Settings = Mapping[str, Value]


class Tried(msgspec.Struct, frozen=True):
    """`score`: mean over the cells of efficiency less P0 misses. `efficiency`, `p0_miss`: their means, each a share; efficiency
    beside the table of capacities, not the oracle, so that it may be a little above 1."""

    settings: dict[str, Value]
    score: float
    efficiency: float
    p0_miss: float


class Tuning(msgspec.Struct, frozen=True):
    """One baseline's, on `cells`. `best`: the settings of the highest score."""

    cells: list[Cell]
    best: dict[str, Value]
    tried: list[Tried]


class Tuned(msgspec.Struct, frozen=True):
    """The whole file: by controller, then by the workload it was tuned for, or `ANY`."""

    controllers: dict[str, dict[str, Tuning]]


ANY = "any"


def load() -> Tuned:
    return msgspec.json.decode(FILE.read_bytes(), type=Tuned)


def save(tuned: Tuned) -> None:
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(tuned), indent=1) + b"\n")


def with_settings(setup: Setup, settings: Settings) -> Setup:
    """The setup with these settings in every pool, or in its law."""
    sections = _sections(settings)
    law = setup.law
    if isinstance(law, Gate):
        law = msgspec.convert(sections.pop("gate", {}), Gate)
    return replace(setup, pool={**setup.pool, **sections}, law=law)


def as_tuned(setup: Setup, tunings: Mapping[str, Tuning]) -> Setup:
    """The setup as its tunings found it best, each for its workload."""
    if ANY in tunings:
        setup = with_settings(setup, tunings[ANY].best)
    by_workload = {name: _sections(tuning.best) for name, tuning in tunings.items() if name != ANY}
    return replace(setup, by_workload=by_workload)


def _sections(settings: Settings) -> dict[str, dict[str, Value]]:
    sections: defaultdict[str, dict[str, Value]] = defaultdict(dict)
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections[section][key] = value
    return dict(sections)
