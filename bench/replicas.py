"""One limit over four replicas, through everything that the store and the replicas can do: `python -m bench.replicas`.

Four `extproc serve`, a real Envoy, one store, an engine that counts who is open. Each phase does one thing to them under load
and says what engine and clients saw. Under five minutes.

`late_admissions`: admitted requests that reached the engine while as many as the limit allows were open, later than 250 ms
after it fell. `max_open` counts admitted requests too; `let_by` is how many Envoy sent on without a word of ours, because
the replica it had asked was gone (`failure_mode_allow`).

`inversion_ms`: the longest that a P0 had waited anywhere when a P2 was let in. `unheard_ms`: the same of P0s of which nobody
could hear, because their replica stood still or was cut off from the store. `way_ms`: the longest way from a client to the
engine of requests that nobody limits, which is taken off the inversions; `inversion_raw_ms` is what they were before
(`bench.shared_inversion`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.shared_engine import late, most_open
from bench.shared_inversion import Inversion, inversions, longest_s
from bench.shared_script import script_times
from bench.shared_stack import World, world
from tests.support import valkey

HOLD_S = 3.0
LIMIT = 10
RATE_LIMIT = 400
RATE_PER_S = 400.0
KEPT = 500
TRICKLE_S = 0.7
SHOWN = 5
WORTH_SHOWING_S = 0.2
Act = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase showed. Times as their names say; the decision is from an ask to its verdict, over all replicas."""

    name: str
    limit: int
    max_open: int
    late_admissions: int
    refused: int
    status_5xx: int
    inversion_ms: float
    unheard_ms: float
    inversion_raw_ms: float
    way_ms: float
    decision_p50_us: float
    decision_p99_us: float
    redis_ops_per_request: float
    let_by: int
    admitted: int


async def phase(here: World, name: str, act: Act) -> Phase:
    loop = asyncio.get_running_loop()
    start, calls, asks = loop.time(), here.store.calls(), await here.ask_times()
    measuring = asyncio.ensure_future(here.clients.measure_the_way())
    await act(here)
    measuring.cancel()
    ways = [way for way in here.ways if way.came > start]
    arrivals, sent = here.engine.since(start), here.clients.since(start)
    now_calls = here.store.calls()
    counts = _gained(asks, await here.ask_times())
    answered = sum(a.admitted for a in arrivals) + sum(one.status == 429 for one in sent)
    p2s = [a for a in arrivals if a.admitted and a.priority == "P2"]
    found = inversions(sent, here.engine.came, p2s, here.unheard, ways)
    done = Phase(
        name=name,
        limit=here.engine.limits[-1][1],
        max_open=most_open(arrivals),
        late_admissions=late(arrivals, here.engine),
        refused=sum(one.status == 429 for one in sent),
        status_5xx=sum(one.status >= 500 for one in here.clients.sent if one.at >= start or one.status == 599),
        inversion_ms=round(1000 * longest_s(found, heard=True), 1),
        unheard_ms=round(1000 * longest_s(found, heard=False), 1),
        inversion_raw_ms=round(1000 * max((one.raw_s for one in found if one.heard), default=0.0), 1),
        way_ms=round(1000 * max((way.came - way.at for way in ways), default=0.0), 1),
        decision_p50_us=_quantile_us(counts, 0.50),
        decision_p99_us=_quantile_us(counts, 0.99),
        redis_ops_per_request=round((now_calls - calls if now_calls >= calls else now_calls) / max(1, answered), 2),
        let_by=sum(not a.admitted for a in arrivals),
        admitted=sum(a.admitted for a in arrivals),
    )
    _say(asdict(done))
    for one in sorted(found, key=lambda one: not one.heard)[:SHOWN]:
        if one.waited_s > WORTH_SHOWING_S:
            _explain(one, start)
    return done


def _explain(one: Inversion, start: float) -> None:
    """The instance, for whoever looks for the cause. Seconds since the phase's start."""
    p0 = one.p0_came
    came = "never" if p0 is None else f"at {p0.at - start:.3f} through {p0.replica or 'nobody'}"
    _say(
        {
            "waited_ms": round(1000 * one.waited_s),
            "heard": one.heard,
            "p0": f"{one.p0.number} sent at {one.p0.at - start:.3f}, came {came}",
            "p2": f"{one.p2.number} came at {one.p2.at - start:.3f} through {one.p2.replica}",
        }
    )


def _gained(before: dict[str, dict[float, float]], after: dict[str, dict[float, float]]) -> dict[float, float]:
    """Cumulative counts by upper bound; a replica that started anew counts from 0."""
    total: dict[float, float] = {}
    for name, buckets in after.items():
        old = before.get(name, {})
        fresh = any(count < old.get(bound, 0.0) for bound, count in buckets.items())
        for bound, count in buckets.items():
            total[bound] = total.get(bound, 0.0) + count - (0.0 if fresh else old.get(bound, 0.0))
    return total


def _quantile_us(counts: dict[float, float], q: float) -> float:
    """From a histogram, evenly within a bucket; above the last bound, that bound."""
    bounds = sorted(counts)
    wanted = q * counts[bounds[-1]] if bounds else 0.0
    low, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted > below:
            high = low if bound == float("inf") else bound
            return round(1e6 * (low + (high - low) * (wanted - below) / (counts[bound] - below)), 1)
        low, below = (low if bound == float("inf") else bound), counts[bound]
    return 0.0


def for_seconds(seconds: float) -> Act:
    async def act(_: World) -> None:
        await asyncio.sleep(seconds)

    return act


async def fall(here: World) -> None:
    await here.set_limit(20)
    await asyncio.sleep(5)
    await here.set_limit(5)
    await asyncio.sleep(5)


async def replica_killed(here: World) -> None:
    here.stack.children["extproc-4"].send_signal(signal.SIGKILL)
    await asyncio.sleep(8)


async def replica_added(here: World) -> None:
    await here.stack.start_replica("extproc-4")
    await here.whole(LIMIT)
    await asyncio.sleep(3)


async def replica_stopped(here: World) -> None:
    child = here.stack.children["extproc-3"]
    with here.nobody_hears("extproc-3", still=True):
        child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(5)
        child.send_signal(signal.SIGCONT)
    await asyncio.sleep(4)


async def redis_stopped(here: World) -> None:
    here.store.server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(10)
    here.store.server.process.send_signal(signal.SIGCONT)
    await here.whole(LIMIT)
    await asyncio.sleep(3)


async def redis_restarted_empty(here: World) -> None:
    await asyncio.to_thread(here.store.restart_empty)
    await here.whole(LIMIT)
    await asyncio.sleep(4)


async def flushed(here: World) -> None:
    with here.store.client() as client:
        client.script_flush()
        client.flushall()
    await asyncio.sleep(5)


async def leader_killed(here: World) -> None:
    leader = await here.leader()
    here.stack.children[leader].send_signal(signal.SIGKILL)
    await here.until(lambda pools: any(p["share"]["leading"] for n, p in pools.items() if n != leader), within_s=5)
    await asyncio.sleep(4)
    await here.stack.start_replica(leader)
    await here.whole(LIMIT)


async def replica_cut_off(here: World) -> None:
    with here.nobody_hears("extproc-4", still=False):
        await here.proxies[3].cut()
        await asyncio.sleep(10)
        await here.proxies[3].start()
    await here.whole(LIMIT)
    await asyncio.sleep(3)


async def redis_slow(here: World) -> None:
    for proxy in here.proxies:
        proxy.delay_s = 0.1
    await asyncio.sleep(7)
    for proxy in here.proxies:
        proxy.delay_s = 0.0
    await here.whole(LIMIT)


async def failover(here: World) -> None:
    """To a replica that heard nothing of the last second."""
    folder = Path(here.stack.folder) / "follower"
    options = ("--replicaof", f"127.0.0.1 {here.store.port}")
    follower = await asyncio.to_thread(lambda: valkey.start(folder, *options, port=valkey.free_port()))
    try:
        with follower.client() as client:
            while client.info("replication").get("master_link_status") != "up":  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            client.replicaof("NO", "ONE")
            await asyncio.sleep(1)
        await here.all_lines_to(follower.port)
        await here.whole(LIMIT)
        await asyncio.sleep(4)
    finally:
        await here.all_lines_to(here.store.port)
        await asyncio.to_thread(valkey.stop, follower)


async def idle(here: World) -> dict[str, float]:
    """Load has stopped: how long until nothing is held or waits, and how often an idle replica calls."""
    await here.clients.stop()
    took_s = await here.until(
        lambda pools: all(
            pool["held"]["slots"] == 0 and all(c["waiting"] == 0 for c in pool["priorities"].values())
            for pool in pools.values()
        )
    )
    calls, start = here.store.calls(), asyncio.get_running_loop().time()
    await asyncio.sleep(2)
    elapsed_s = asyncio.get_running_loop().time() - start
    per_replica = (here.store.calls() - calls) / elapsed_s / len(here.stack.replicas)
    return {"returned_to_zero_s": round(took_s, 2), "idle_calls_per_s": round(per_replica, 2)}


async def under_load(
    limit: int, phases: list[tuple[str, Act]], *, proxied: bool
) -> tuple[list[Phase], dict[str, float]]:
    async with world(limit=limit, hold_s=HOLD_S, proxied=proxied) as here:
        await asyncio.sleep(2)  # the first generation's care
        here.clients.keep(KEPT)
        await asyncio.sleep(2)  # the burst itself: it keeps this machine busy, not the replicas
        trickle = asyncio.ensure_future(here.clients.trickle(TRICKLE_S))
        done = []
        for name, act in phases:
            done.append(await phase(here, name, act))
            if here.engine.limits[-1][1] != limit:
                await here.set_limit(limit)
            if name != "replica-killed":  # the next phase brings it back
                await here.whole(limit)
        trickle.cancel()
        return done, await idle(here)


async def at_rate() -> tuple[list[Phase], dict[str, float]]:
    async with world(limit=RATE_LIMIT, hold_s=0.5, proxied=False) as here:
        await asyncio.sleep(2)
        done = await phase(here, "rate", lambda here: here.clients.steady_rate(RATE_PER_S, 6))
        return [done], await idle(here)


async def run(only: frozenset[str]) -> dict[str, object]:
    """`only`: names of phases; empty: all, and what an ask costs in the server."""
    direct: list[tuple[str, Act]] = [
        ("steady", for_seconds(8)),
        ("fall", fall),
        ("replica-killed", replica_killed),
        ("replica-added", replica_added),
        ("replica-stopped", replica_stopped),
        ("redis-stopped", redis_stopped),
        ("redis-restarted-empty", redis_restarted_empty),
        ("flushed", flushed),
        ("leader-killed", leader_killed),
    ]
    proxied: list[tuple[str, Act]] = [
        ("replica-cut-off", replica_cut_off),
        ("redis-slow", redis_slow),
        ("failover", failover),
    ]
    done: list[Phase] = []
    numbers: dict[str, object] = {}
    for phases, through_proxies in ((direct, False), (proxied, True)):
        if wanted := [(name, act) for name, act in phases if not only or name in only]:
            more, numbers["after"] = await under_load(LIMIT, wanted, proxied=through_proxies)
            done += more
    if not only or "rate" in only:
        more, numbers["idle"] = await at_rate()
        done += more
    if not only:
        numbers["ask_script"] = await script_times()
    return {"phases": [asdict(one) for one in done], **numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PHASE", help="these phases alone; replica-killed needs replica-added"
    )
    options = parser.parse_args()
    gc.disable()  # a collection stops clients and engine for up to 200 ms, and looks like waiting
    numbers = asyncio.run(asyncio.wait_for(run(frozenset(options.only)), 300))
    text = json.dumps(numbers, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n")
    _say({key: value for key, value in numbers.items() if key != "phases"})


def _say(numbers: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(numbers) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
