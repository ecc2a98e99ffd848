"""Controller `fused`: what is let in counts at once, and what the engines show corrects the count.

Between two samples the service knows what it has sent and what has ended; so limits on that act without delay, and the
engines need to tell only how wrong they are. The tightest of three binds:

- *KV tokens*: a share of the cache, over what the fullest engine was seen to hold of a token counted (`bias`), less what
  nothing that was counted can explain (`foreign`): work of others, or from before a restart.
- *Sequences*: what the engines run at a time.
- *Pace*: prompt tokens per second. A burst let in at once is seconds of prefill in engines that serve first come, first
  served: whoever comes after it waits, and every step of those that run takes longer. The pace is the largest at which
  hardly anybody waits inside the engines and their steps stay within the pool's time per token: who starts at a slower pace
  is fewer at a time, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from msgspec import Struct

from extproc.config import FailurePolicy, FusedPolicy, PoolPolicy
from extproc.controllers.watermark import mean_usage
from extproc.fleet import EngineSample, Fleet
from extproc.model import NOTHING, UNLIMITED, Demand, Load, Pace, PoolState
from extproc.targets import per_token_s

PERIOD_S, LONGEST_S = 0.05, 0.2
"""The laws' own step, whatever rate they are called at, and the most that a step after a gap counts for."""
_EARLY_S = 1e-6
"""Clock sums are not exact: a step as good as due is due."""
BIAS_RISES_S, BIAS_FALLS_S = 1.0, 30.0
"""Time constants. The fullest moment counts, not the mean: in a wave of newcomers all are short, and grow together."""
LEAST_BIAS, MOST_BIAS = 0.3, 1.5
COMPARED_FROM = 0.4
"""Share of the cache that must be counted as in use before it is compared: the last ones of a crowd are its longest."""
FILLS_S, FIRST_PACE = 16.0, 4000.0
"""The first pace: the whole cache in so long, and at least so many tokens per second and engine, which any card does however
little of it is left for a cache. The rest is learned."""
LEAST_PACE = 64.0
"""Prompt tokens per second and engine, so that there is always something to learn from."""
LEANS = 0.5
"""While the backlog is deeper than wanted, the pace in force is below the one learned by so much for each time that it is. An
integral alone would swing: the backlog integrates too."""
LEAST_LEAN = 0.1
SEEKS_PER_S, BRAKES = 0.4, 2.0
"""How fast the learned pace follows, per second and unit of what is too much or left; and how much a unit of too long steps is
in units of backlog: steps of full chunks are near their bound while the engines could take more."""
FRESH_SCRAPES = 3.0
"""A line in an engine is believed for so many scrape intervals: it is worked off in less than a sample is believed."""
STRANGERS_S, SURPLUS = 20.0, 0.05
"""What the engines show beyond what we have there is others' work where it stays so long, about. What comes beyond that at once
has ended meanwhile, and the page is old; but for so large a share, in which a young page is wrong as well."""
MISSED_S = 10.0
"""An engine whose page is silent may still work: so long, about, P0 may take the place of what ends there."""
BUSY_S, BUSY_FROM = 2.0, 0.8
WAITS_S = 0.1
"""Pressure is that work waits, more than so many seconds of it, for so large a share of about so long: a pool that is full on
purpose shows nothing else. A burst that is over in less is no reason to refuse anybody."""
DEPTHS = (3.0, 1.0, 0.7)
"""Per priority, in units of the policy's backlog: there is nearly always room for the more important one."""


@dataclass(frozen=True, slots=True)
class FusedMemory:
    """`bias`: KV tokens in the fullest engine per token counted, as if all were like it. `pace`: prompt tokens per second and
    engine; None before the first. `lean`: its factor for now. `engines`: that
    report, and what is left of those that did. `busy`: share of the last time in which work waited. `recent`: KV tokens
    that we may have in the engines as they show themselves. `foreign`: share of the cache that others fill; `strangers`: mean
    surplus of sequences, inf before the first. `at`: last step."""

    bias: float = 1.0
    pace: float | None = None
    lean: float = 1.0
    engines: float = 0.0
    busy: float = 0.0
    recent: float = 0.0
    foreign: float = 0.0
    strangers: float = math.inf
    at: float = -math.inf


class _View(Struct, frozen=True, gc=False):
    """What a step goes by. `usage`: mean of the engines; `kept`: share of `recent` that is still believed. `slow`: duration of
    engine steps over what is wanted; `queue`: backlog in the engines over what is wanted, 1 is as deep as it shall be; `waits`:
    work does; `held_back`: the pace, and nothing else, makes somebody wait; `surplus`: sequences that the engines show beyond
    what we have there."""

    elapsed_s: float
    engines: int
    capacity_tokens: int
    in_use: Load
    usage: float
    kept: float
    fullest: float | None
    slow: float
    queue: float
    waits: bool
    held_back: bool
    surplus: float


class Fused:
    """Refuses nobody: who does not fit waits, and the drop policies and targets tell how long."""

    def __init__(self, pool: PoolPolicy, failure: FailurePolicy, memory: FusedMemory | None = None) -> None:
        self._policy = pool.fused
        self._step_s = pool.fused.tpot_share * per_token_s(pool)
        self._stale_after_s = failure.stale_after_s
        self._fresh_s = FRESH_SCRAPES * pool.engines.scrape_interval_s
        self.memory = memory or FusedMemory()

    def step(self, now: float, fleet: Fleet, *, demand: Demand, previous: PoolState) -> PoolState:
        reporting = fleet.reporting(now, self._stale_after_s)
        capacity_tokens = sum(sample.kv_capacity_tokens or 0 for sample in reporting)
        if capacity_tokens and now - self.memory.at >= PERIOD_S - _EARLY_S:
            pace = self.memory.pace or max(FIRST_PACE, capacity_tokens / len(reporting) / FILLS_S)
            view = self._view(now, reporting, pace, demand=demand, previous=previous, capacity_tokens=capacity_tokens)
            learned = _learned(self.memory, view, pace=pace) if demand.whole else replace(self.memory, pace=pace)
            self.memory = _seen(learned, view, at=now)
        in_use = sum(demand.in_use, NOTHING)
        limits = _limits(self._policy, self.memory, capacity_tokens, engines=len(reporting), in_use=in_use)
        return PoolState(
            limits=limits or (UNLIMITED, UNLIMITED, UNLIMITED),
            saturation=self._saturation(reporting),
            pressure_at=previous.pressure_at,
            reason="fused" if limits else "capacity-unknown",
            at=now,
            engines_reporting=len(reporting),
            pace=_pace(self._policy, self.memory, engines=len(reporting)),
        )

    def _saturation(self, reporting: Sequence[EngineSample]) -> float:
        """Whether others lack what one takes. A cache that fills is none: it is filled on purpose."""
        full = (mean_usage(reporting) or 0.0) >= self._policy.theta
        return 1.0 if full else min(1.0, self.memory.busy / BUSY_FROM)

    def _view(
        self,
        now: float,
        reporting: Sequence[EngineSample],
        pace: float,
        *,
        demand: Demand,
        previous: PoolState,
        capacity_tokens: int,
    ) -> _View:
        in_use, waiting = sum(demand.in_use, NOTHING), sum(demand.waiting, NOTHING)
        steps_s = [sample.iteration_s for sample in reporting if sample.iteration_s]
        prompt_tokens = max(1.0, demand.mean_cost.tokens - (previous.expected_output_tokens or 0.0))
        fresh = [sample for sample in reporting if now - sample.at <= self._fresh_s]
        surplus = sum((sample.running or 0) + (sample.waiting or 0) for sample in fresh) - in_use.slots
        strange = surplus - self.memory.strangers - SURPLUS * in_use.slots
        lines = _lines(fresh, gone=strange if demand.whole else 0.0)
        wanted_tokens = max(pace * self._policy.backlog_s, prompt_tokens)
        return _View(
            elapsed_s=min(LONGEST_S, now - self.memory.at),
            engines=len(reporting),
            capacity_tokens=capacity_tokens,
            in_use=in_use,
            usage=mean_usage(reporting) or 0.0,
            kept=math.exp((self.memory.at - now) / self._stale_after_s),
            fullest=max((sample.kv_usage for sample in reporting if sample.kv_usage is not None), default=None),
            slow=median(steps_s) / self._step_s if steps_s else 0.0,
            # Between the mean and the worst: a line in one engine makes its newcomers late, one slow engine is not all.
            queue=(sum(lines) / len(lines) + max(lines)) / 2 * prompt_tokens / wanted_tokens if lines else 1.0,
            waits=waiting.tokens > WAITS_S * (demand.drain_per_s or NOTHING).tokens,
            held_back=demand.paced,
            surplus=surplus,
        )


def _lines(fresh: Sequence[EngineSample], *, gone: float) -> list[float]:
    """Requests waiting in each engine. `gone`: have ended since, so that those behind them have begun."""
    each = max(0.0, gone) / max(1, len(fresh))
    return [max(0.0, (sample.waiting or 0) - each) for sample in fresh]


def _learned(memory: FusedMemory, view: _View, *, pace: float) -> FusedMemory:
    """Only where the traffic is known whole: the engines' part in it is what shows how wrong a count is."""
    room = min(1 - view.queue, BRAKES * (1 - view.slow))
    if room < 0 or view.held_back:
        pace *= math.exp(SEEKS_PER_S * view.elapsed_s * max(-1.0, room))
    recent = max(view.in_use.tokens, memory.recent * view.kept)
    surplus = max(0.0, view.surplus)  # an engine whose page is silent is missing from what is shown
    strangers = surplus if memory.strangers == math.inf else memory.strangers
    return replace(
        memory,
        bias=_bias(memory.bias, view),
        pace=max(LEAST_PACE, pace),
        recent=recent,
        foreign=max(0.0, view.usage - MOST_BIAS * recent / view.capacity_tokens),
        strangers=surplus + (strangers - surplus) * math.exp(-view.elapsed_s / STRANGERS_S),
    )


def _seen(memory: FusedMemory, view: _View, *, at: float) -> FusedMemory:
    """What the engines, and whoever waits here, show by themselves."""
    return replace(
        memory,
        lean=min(1.0, max(LEAST_LEAN, 1 + LEANS * (1 - view.queue))),
        engines=max(view.engines, memory.engines * math.exp(-view.elapsed_s / MISSED_S)),
        busy=memory.busy + (view.waits - memory.busy) * min(1.0, view.elapsed_s / BUSY_S),
        at=at,
    )


def _bias(bias: float, view: _View) -> float:
    if view.fullest is None or view.in_use.tokens < COMPARED_FROM * view.capacity_tokens:
        return bias
    seen = min(MOST_BIAS, max(LEAST_BIAS, view.fullest * view.capacity_tokens / view.in_use.tokens))
    follows_s = BIAS_RISES_S if seen > bias else BIAS_FALLS_S
    return bias + (seen - bias) * min(1.0, view.elapsed_s / follows_s)


def _limits(
    policy: FusedPolicy, memory: FusedMemory, capacity_tokens: int, *, engines: int, in_use: Load
) -> tuple[Load, Load, Load] | None:
    """None where no capacity is known. P1 and P2 leave the same to P0; between those two the queues' order is enough.

    Where an engine has fallen silent more is in use than the limit is now. If the engine is dead its requests end at once;
    if not, P0 goes on with what ends there, a while.
    """
    if not capacity_tokens:
        return None
    sequences = float(policy.sequences_per_engine * engines)
    share = max(0.0, policy.theta - memory.foreign)
    whole = Load(share * capacity_tokens / memory.bias, sequences)
    below = whole.scaled(1 - policy.headroom)
    missed = min(memory.engines / engines, in_use.share_of(whole) + policy.headroom)
    return whole.scaled(max(1.0, missed)), below, below


def _pace(policy: FusedPolicy, memory: FusedMemory, *, engines: int) -> Pace | None:
    if memory.pace is None or not engines:
        return None
    rate = memory.pace * engines
    first, second, third = (rate * policy.backlog_s * depth for depth in DEPTHS)
    return Pace(rate, (first, second, third), memory.lean)
