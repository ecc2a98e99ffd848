"""The table of scenarios. Times are short where nothing in the engines or the controllers takes longer to show.

Engines are always those of `EngineSpec`, but in `small-cache`, `slow-cards` and `restart`. `sweep` has the loads of the curve; the
numbered ones change something under way, and run at twice the capacity unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from extproc.sim.world.capacity import BIMODAL, CHAT, LONG, SLOW, SMALL_CACHE_TOKENS, same_requests
from extproc.sim.world.client import Persistence
from extproc.sim.world.scenario import Fault, FaultKind, Phase, Scenario
from extproc.sim.world.traffic import Crowd, Sender

SWEEP_RHOS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
BURSTY = Crowd(bursty=True)
HALF_DEAF = Crowd(deaf=0.5)
LEAVING = Crowd(leaving=0.8)
PAST_US = Crowd(bypassing=0.25)
SDK_RETRIES, STUBBORN_RETRIES = 2, 10
TOKENS_PER_LONG_REQUEST = 6.0
"""Prompt and answer of a long request, in those of a usual one."""
FLOOD = replace(
    CHAT,
    name="flood",
    mix=(0.04, 0.06, 0.90),
    senders=(Sender("team-a", traffic=(1, 1, 20)), *(Sender(f"team-{name}", traffic=(1, 1, 3)) for name in "bcd")),
)


def _step(rho: float, _chunk: int) -> tuple[Phase, ...]:
    loads = (0.5, rho, 2.5 * rho, 5 * rho, 0.5)
    return tuple(Phase(seconds, load) for seconds, load in zip((10.0, 15.0, 15.0, 10.0, 15.0), loads, strict=True))


def _shift_tokens(rho: float, chunk: int) -> tuple[Phase, ...]:
    same_tokens = same_requests(rho, LONG, chunk) / TOKENS_PER_LONG_REQUEST
    return Phase(10.0, rho), Phase(20.0, same_tokens, LONG)


def _shift_requests(rho: float, chunk: int) -> tuple[Phase, ...]:
    return Phase(10.0, rho), Phase(20.0, same_requests(rho, LONG, chunk), LONG)


def _storm(rho: float, _chunk: int) -> tuple[Phase, ...]:
    """Ten seconds of overload, and time for all to come back: refused is about a quarter of all there is."""
    return tuple(Phase(seconds, load, crowd=HALF_DEAF) for seconds, load in ((5.0, 0.6), (10.0, rho), (25.0, 0.6)))


def _cancels(rho: float, _chunk: int) -> tuple[Phase, ...]:
    """While it storms, those who stay offer half as much as usual, and four times as many leave."""
    return Phase(5.0, rho), Phase(15.0, rho / 2, crowd=LEAVING), Phase(10.0, rho)


def _with_less(rho: float, power: float) -> tuple[Phase, ...]:
    return Phase(5.0, rho), Phase(15.0, rho, power=power), Phase(10.0, rho)


def _curve(name: str, title: str, phase: Callable[[float], Phase], rhos: tuple[float, ...] = (2.0,)) -> Scenario:
    """One constant load each, long enough for the third digit."""
    return Scenario(name, title, lambda rho, _: (phase(rho),), rhos=rhos, warm_up_s=20.0, cool_down_s=10.0)


def _constant(name: str, title: str, *faults: Fault, seconds: float = 30.0, replicas: int = 1) -> Scenario:
    return Scenario(name, title, lambda rho, _: (Phase(seconds, rho),), faults=faults, replicas=replicas)


_F = FaultKind
_RESTART = Fault(_F.REPLICA_KILLED, 10.0, value=0.0), Fault(_F.REPLICA_ADDED, 10.3)

_TABLE = (
    _curve("sweep", "constant load, Poisson", lambda rho: Phase(40.0, rho), SWEEP_RHOS),
    _curve("bursty", "in bursts of 2.5 times", lambda rho: Phase(40.0, rho, crowd=BURSTY), (0.8, 2.0, 5.0)),
    Scenario("1-step", "0.5, 2, 5, 10 times the capacity, and back", _step),
    Scenario("2-shift-tokens", "prompts of 500, then 4000 tokens; as many tokens", _shift_tokens),
    Scenario("2-shift-requests", "prompts of 500, then 4000 tokens; as many requests", _shift_requests, rhos=(0.7,)),
    Scenario(
        "3-retry-storm",
        "who is refused tries again; half ignore Retry-After",
        _storm,
        persistence=Persistence(obedient=SDK_RETRIES, deaf=STUBBORN_RETRIES),
    ),
    Scenario("4-cancel-storm", "80 % leave within 200 ms", _cancels),
    Scenario(
        "5-engines-lost",
        "2 of 8 engines die, and return",
        lambda rho, _: _with_less(rho, 6 / 8),
        engines=8,
        faults=(Fault(_F.ENGINES_GONE, 5.0, 20.0, 2),),
    ),
    _constant("6-frozen-content", "all pages stand still", Fault(_F.METRICS_FROZEN, 5.0, 20.0)),
    _constant("6-frozen-endpoint", "half of the pages do not answer", Fault(_F.METRICS_SILENT, 5.0, 20.0, 0.5)),
    _constant(
        "6-delayed",
        "all pages are 0.5, then 2, then 5 s old",
        Fault(_F.METRICS_DELAYED, 3.0, 10.0, 0.5),
        Fault(_F.METRICS_DELAYED, 10.0, 18.0, 2.0),
        Fault(_F.METRICS_DELAYED, 18.0, 26.0, 5.0),
    ),
    _constant("6-blind", "no page answers for 60 s", Fault(_F.METRICS_SILENT, 5.0, 65.0), seconds=75.0),
    _constant(
        "6-slow-scrape", "a page comes every 3 s, and is believed for 1 s", Fault(_F.METRICS_RARE, 5.0, 25.0, 3.0)
    ),
    Scenario(
        "7-slow-engine",
        "1 of 4 engines three times slower, its KV cache as usual",
        lambda rho, _: _with_less(rho, (3 + 1 / 3) / 4),
        engines=4,
        faults=(Fault(_F.ENGINE_SLOW, 5.0, 20.0, 3.0),),
    ),
    _constant("8-store-lost", "no store for 60 s", Fault(_F.STORE_LOST, 5.0, 65.0), seconds=75.0, replicas=3),
    _constant("8-store-slow", "100 ms a call", Fault(_F.STORE_SLOW, 5.0, 20.0, 0.1), replicas=3),
    _constant(
        "8-store-failover", "the last second's writes lost", Fault(_F.STORE_FAILOVER, 10.0, 11.0, 1.0), replicas=3
    ),
    _constant(
        "8-store-flushed", "all keys gone, twice", *(Fault(_F.STORE_FLUSHED, at) for at in (5.0, 15.0)), replicas=3
    ),
    _constant(
        "9-replicas",
        "1 of 3 replicas killed, two added",
        *(Fault(_F.REPLICA_KILLED, 5.0), Fault(_F.REPLICA_ADDED, 12.0), Fault(_F.REPLICA_ADDED, 14.0)),
        replicas=3,
    ),
    Scenario(
        "10-tenant-flood",
        "one of four tenants floods batch at 20 times its share",
        lambda rho, _: (Phase(30.0, 2 * rho, FLOOD),),
    ),
    Scenario(
        "11-bimodal",
        "95 % prompts of 50 tokens, 5 % of 32,000",
        lambda rho, _: (Phase(30.0, rho, BIMODAL),),
    ),
    replace(
        _constant(
            "12-clocks",
            "clocks go 2 % wrong and leap",
            *(Fault(_F.CLOCK_LEAPS, 5.0, value=3.0), Fault(_F.CLOCK_LEAPS, 15.0, value=30.0)),
            replicas=3,
        ),
        clock_rates=(1.02, 1.0, 0.98),
    ),
    replace(_curve("long", "prompts of 4000 tokens", lambda rho: Phase(40.0, rho, LONG)), in_all=False),
    replace(
        _curve("small-cache", "KV tokens bind, not sequences", lambda rho: Phase(40.0, rho), (2.0, 5.0)),
        kv_tokens=SMALL_CACHE_TOKENS,
        in_all=False,
    ),
    replace(
        _curve("slow-cards", "steps bind: all sequences at once would be too slow", lambda rho: Phase(40.0, rho)),
        speed=SLOW,
        in_all=False,
    ),
    replace(
        _constant("restart", "small caches, full; the only replica dies and another starts", *_RESTART),
        kv_tokens=SMALL_CACHE_TOKENS,
        in_all=False,
    ),
    replace(
        _curve(
            "bypass",
            "small caches; a quarter of all goes past the service",
            lambda rho: Phase(40.0, rho, crowd=PAST_US),
        ),
        kv_tokens=SMALL_CACHE_TOKENS,
        in_all=False,
    ),
    Scenario(
        "fleet",
        "2,000 engines in one pool",
        lambda rho, _: (Phase(2.0, rho),),
        rhos=(0.2,),
        engines=2000,
        policy={"pools": {"engines": {"scrapeInterval": "500ms"}}},
        warm_up_s=1.0,
        cool_down_s=0.0,
        settle_s=10.0,
        in_all=False,
    ),
    Scenario(
        "pools",
        "three pools behind one service",
        lambda rho, _: (Phase(20.0, rho),),
        engines=6,
        pools=3,
        in_all=False,
    ),
)

SCENARIOS: dict[str, Scenario] = {one.name: one for one in _TABLE}
