"""A way to protect the engines: a policy, or a law that is no product's. Values; pickled on the way to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from extproc.config import Policy, parse_policy
from extproc.sim.engine_spec import Scheduling
from extproc.sim.world.laws import Law
from extproc.sim.world.scenario import Scenario

TTFT_TARGETS_S = (1.0, 3.0, 10.0)
TPOT_TARGET_S = 0.060


@dataclass(frozen=True, slots=True)
class Setup:
    """`policy`: over the defaults, as the policy's YAML would say it; `pool`: likewise, for every pool; `by_workload`: over that,
    where a scenario's workload is of this name. `law` decides instead of the policy's controllers."""

    name: str
    policy: Mapping[str, object] = field(default_factory=dict)
    pool: Mapping[str, object] = field(default_factory=dict)
    by_workload: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    law: Law | None = None
    scheduling: Scheduling = Scheduling.FCFS


def engine_names(scenario: Scenario, pool: int) -> list[str]:
    """The addresses of a pool's engines; the fleet is split evenly."""
    each = scenario.engines // scenario.pools
    return [f"10.{pool}.{index >> 8}.{index & 255}:8000" for index in range(each)]


def policy_of(setup: Setup, scenario: Scenario) -> Policy:
    """What the service is given: parsed from text, as from a file."""
    pools = []
    for index in range(scenario.pools):
        names = engine_names(scenario, index)
        engines = {"static": names, "scrapeInterval": "100ms"}
        targets = {
            f"P{priority}": {"ttft": f"{ttft_s:g}s", "tpot": f"{TPOT_TARGET_S * 1000:g}ms"}
            for priority, ttft_s in enumerate(TTFT_TARGETS_S)
        }
        pool: dict[str, object] = {"name": f"pool-{index}", "engines": engines, "targets": targets}
        if scenario.pools > 1:
            pool["models"] = [f"model-{index}"]
        pools.append(_over(_over(pool, setup.pool), setup.by_workload.get(scenario.workload, {})))
    whole = {
        "pools": pools,
        "trust": {"headers": ["x-priority", "x-tenant-id"]},
    }
    return parse_policy(yaml.safe_dump(_over(_over(whole, setup.policy), scenario.policy)), "simulated policy")


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """`above` over `below`; sections are merged, the `pools` of the upper are settings for each pool."""
    merged = dict(below)
    for key, value in above.items():
        held = merged.get(key)
        if key == "pools" and isinstance(held, list) and isinstance(value, Mapping):
            merged[key] = [_over(pool, value) for pool in held]
        elif isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[key] = _over(held, value)
        else:
            merged[key] = value
    return merged
