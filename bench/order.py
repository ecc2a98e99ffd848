"""Are the controllers in the same order in real time as in virtual time? `python -m bench.order --json FILE`, about four minutes.

The demo's engines, load and clients, under each controller in turn: over HTTP through a real Envoy and `extproc serve`, and
the very same requests in virtual time. Rounds are interleaved, each with a seed of its own. Virtual time leaves out what
processes cost and how late metrics are; where the two disagree by more than the rounds do among themselves, it is wrong or
the service is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from bench.ordering import Round, order, table
from extproc import log
from extproc.config.plain import to_plain
from extproc.model import PRIORITIES, Priority
from extproc.sim.engine_spec import EngineSpec
from extproc.sim.load import Observation, Target, offer
from extproc.sim.processes import raise_file_limit
from extproc.sim.results import percentile, summarise
from extproc.sim.sizing import (
    CHUNK,
    ENGINE_ARGS,
    ENGINES,
    KV_TOKENS,
    MAX_NUM_SEQS,
    RATE_PER_S,
    SPEED,
    offered_tokens_per_s,
    output_tokens,
)
from extproc.sim.stack import Stack, StackOptions
from extproc.sim.virtual_time import run_virtual
from extproc.sim.watch import EngineWatch, summarise_readings
from extproc.sim.workload import BYTES_PER_TOKEN, Intended, WorkloadSpec, intended_requests
from extproc.sim.world.measures import in_target
from extproc.sim.world.record import Diary
from extproc.sim.world.scenario import Scenario
from extproc.sim.world.setup import Setup, policy_of
from extproc.sim.world.setups import setup_named
from extproc.sim.world.traffic import Arrival
from extproc.sim.world.world import World

CONTROLLERS = ("none", "fixed", "vegas", "watermark", "pid", "fused")
PATIENCE_S = 14.0
"""Clients leave after it: longer than any first token that counts, and short enough for several rounds."""
UP_S = 2.0
"""In virtual time the service has watched the engines for so long when load comes, about as in the real stack."""
SPEC = EngineSpec(kv_tokens=KV_TOKENS, chunk=CHUNK, max_num_seqs=MAX_NUM_SEQS, speed=SPEED)
FLEET = Scenario("order", "the demo's load", lambda _rho, _chunk: (), engines=ENGINES)


async def real_round(name: str, seed: int, requests: Sequence[Intended], *, seconds: float) -> Round:
    """Through Envoy, in as much time as it takes."""
    setup = setup_named(name)
    options = StackOptions(
        policy=policy_text(setup), protected=name != "none", engines=ENGINES, engine_args=ENGINE_ARGS
    )
    async with Stack(options) as stack, EngineWatch(stack.engine_urls) as watch:
        host, _, port = stack.gateway_address.partition(":")
        start = asyncio.get_running_loop().time()
        seen = await stack.while_alive(offer(requests, Target(host, int(port), patience_s=PATIENCE_S)))
    return _observed(name, seed, seen, readings=watch, start=start, seconds=seconds)


def _observed(
    name: str, seed: int, seen: Sequence[Observation], *, readings: EngineWatch, start: float, seconds: float
) -> Round:
    result = summarise(seen, summarise_readings(readings.readings, start, start + seconds), seconds=seconds)
    classes = [result.classes[str(priority)] for priority in PRIORITIES]
    return Round(
        name,
        seed,
        goodput_tokens_per_s=result.goodput_tokens_per_s,
        p0_missed=1 - classes[0].within_target / max(1, classes[0].sent),
        refused=sum(one.rejected for one in classes) / len(seen),
        failed=sum(one.failed for one in classes) / len(seen),
        preemptions=result.preemptions,
        late_p99_s=percentile((one.late_s for one in seen), 0.99) or 0.0,
    )


def policy_text(setup: Setup) -> str:
    """What the simulated service is given, for the stack to name its engines in."""
    policy = to_plain(policy_of(setup, FLEET))
    pools = policy["pools"]
    assert isinstance(pools, list)
    for pool in pools:
        del pool["engines"]["static"]
    return yaml.safe_dump(policy)


def virtual_round(name: str, seed: int, requests: Sequence[Intended], *, seconds: float) -> Round:
    """The same, in virtual time. Deterministic."""
    traffic = [arrival(request) for request in requests]

    async def main() -> Diary:
        world = World(FLEET, setup_named(name), spec=SPEC, seed=f"{seed}/order")
        return await world.run(traffic, at_most_s=UP_S + seconds + 2 * PATIENCE_S)

    diary = run_virtual(main())
    records = diary.records
    good = [in_target(record) for record in records]
    first = [hit for hit, record in zip(good, records, strict=True) if record.arrival.priority is Priority.P0]
    refused = sum(bool(record.reason) for record in records)
    return Round(
        name,
        seed,
        goodput_tokens_per_s=sum(r.arrival.output_tokens for hit, r in zip(good, records, strict=True) if hit)
        / seconds,
        p0_missed=1 - sum(first) / max(1, len(first)),
        refused=refused / len(records),
        failed=sum(record.last_at is None and not record.reason for record in records) / len(records),
        preemptions=diary.preemptions,
    )


def arrival(request: Intended) -> Arrival:
    """As the simulated clients send it; the answer is as long as the fake engine would make it."""
    return Arrival(
        at_s=UP_S + request.at_s,
        priority=request.priority,
        tenant="default",
        prompt_tokens=request.prompt_tokens,
        output_tokens=output_tokens(request),
        text_bytes=request.prompt_tokens * BYTES_PER_TOKEN,
        max_tokens=request.max_tokens,
        leaves_after_s=PATIENCE_S,
    )


async def run_real(seeds: Sequence[int], names: Sequence[str], *, seconds: float) -> list[Round]:
    """Every controller once per seed, in turns."""
    rounds = []
    for seed in seeds:
        for name in names:
            rounds.append(await real_round(name, seed, workload(seed, seconds), seconds=seconds))
            _say(json.dumps(asdict(rounds[-1])))
    return rounds


def workload(seed: int, seconds: float) -> tuple[Intended, ...]:
    return intended_requests(WorkloadSpec(rate_per_s=RATE_PER_S, seconds=seconds, seed=seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--seconds", type=float, default=7.0, help="in which requests arrive, per controller and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--controllers", default=",".join(CONTROLLERS))
    options = parser.parse_args()
    raise_file_limit()
    names = options.controllers.split(",")
    seeds = range(options.seed, options.seed + options.rounds)
    real = asyncio.run(run_real(seeds, names, seconds=options.seconds))
    log.setup(level="error")
    virtual = [
        virtual_round(name, seed, workload(seed, options.seconds), seconds=options.seconds)
        for seed in seeds
        for name in names
    ]
    found = order(real, virtual)
    offered = offered_tokens_per_s(workload(options.seed, options.seconds), options.seconds)
    if options.json is not None:
        numbers = {"real": [asdict(one) for one in real], "virtual": [asdict(one) for one in virtual]}
        options.json.write_text(json.dumps({**numbers, "order": asdict(found)}, indent=1) + "\n")
    _say(
        f"offered: {offered:.0f} tokens/s; the generator was late by {max(one.late_p99_s for one in real):.3f} s at p99"
    )
    _say(table(real, virtual))
    _say(json.dumps(asdict(found)))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
