"""The table of scenarios. Times are short, because nothing in the engines or the controllers takes longer to show."""

from __future__ import annotations

from extproc.sim.world.scenario import Phase, Scenario
from extproc.sim.world.traffic import Crowd

SWEEP_RHOS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
BURSTY = Crowd(bursty=True)

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario(
            name="sweep",
            title="constant load, Poisson",
            phases=lambda rho: (Phase(40.0, rho),),
            rhos=SWEEP_RHOS,
        ),
        Scenario(
            name="bursty",
            title="the same mean load in bursts of 2.5 times",
            phases=lambda rho: (Phase(40.0, rho, crowd=BURSTY),),
            rhos=(0.8, 2.0, 5.0),
        ),
    )
}
