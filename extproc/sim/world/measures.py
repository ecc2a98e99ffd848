"""From a run's diary to the numbers by which controllers are judged. Pure; the definitions are in each docstring."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from extproc.model import Priority
from extproc.sim.world.record import Diary, Fate, Record
from extproc.sim.world.setup import TPOT_TARGET_S, TTFT_TARGETS_S
from extproc.sim.world.traffic import Sender

FITS_BELOW = 0.9
"""P0 alone fits where it offers less than this share of the capacity there is."""
FAIR_WINDOW_S = 10.0
FAIR_LEAST = 10
"""Where tenants were served fewer requests each than this, one more or less decides, and nothing can be said."""


@dataclass(frozen=True, slots=True)
class Span:
    """A measured phase, in seconds of the run. `capacity_tokens`: what the engines there were could have
    delivered in it; `rho` and `p0_rho`, the load and P0's own, are in units of that."""

    from_s: float
    until_s: float
    rho: float
    capacity_tokens: float
    p0_rho: float

    @property
    def ideal_tokens(self) -> float:
        """What the best could have delivered."""
        return self.capacity_tokens * min(1.0, self.rho)

    @property
    def p0_fits(self) -> bool:
        return self.p0_rho < FITS_BELOW

    def holds(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.until_s


def in_target(record: Record) -> bool:
    """A whole answer, its first token and its pace as promised to its priority, from the sending of this attempt."""
    if record.first_at is None or record.last_at is None:
        return False
    arrival = record.arrival
    tpot_s = (record.last_at - record.first_at) / max(1, arrival.output_tokens - 1)
    return record.first_at - record.sent_at <= TTFT_TARGETS_S[arrival.priority] and tpot_s <= TPOT_TARGET_S


def good_tokens(records: Iterable[Record], from_s: float, until_s: float) -> float:
    """Output tokens of requests sent in that time and answered within target."""
    return sum(r.arrival.output_tokens for r in records if from_s <= r.sent_at < until_s and in_target(r))


def stays(record: Record) -> bool:
    """Its client does not leave on its own account."""
    return record.arrival.leaves_after_s == math.inf


def p0_sent(records: Iterable[Record], spans: Sequence[Span]) -> list[Record]:
    """First attempts of P0 while P0 alone fits."""
    fitting = [span for span in spans if span.p0_fits]
    return [
        record
        for record in records
        if record.arrival.priority is Priority.P0
        and record.attempt == 0
        and stays(record)
        and any(span.holds(record.sent_at) for span in fitting)
    ]


def wasted(diary: Diary) -> float:
    """Share of all tokens computed, prefill and decode, that are in no answer within target."""
    useful = sum(r.arrival.prompt_tokens + r.arrival.output_tokens for r in diary.records if in_target(r))
    return max(0.0, 1 - useful / diary.computed_tokens) if diary.computed_tokens else 0.0


def idle_refusing(diary: Diary, spans: Sequence[Span]) -> float:
    """Spare capacity in the seconds in which somebody was refused, as a share of all: tokens that did not come, whoever
    they would have been for."""
    spare = total_s = 0.0
    for span in spans:
        seconds = range(round(span.from_s), round(span.until_s))
        per_s = span.capacity_tokens / len(seconds)
        total_s += len(seconds)
        spare += sum(max(0.0, 1 - diary.generated[s] / per_s) for s in seconds if diary.refused[s])
    return spare / total_s


def jain(diary: Diary, spans: Sequence[Span], senders: Sequence[Sender]) -> float | None:
    """Mean over 10 s windows and priorities of Jain's index of the weighted tokens served, over the tenants that were
    refused something in it; None where there never were two, served enough to tell."""
    weight = {sender.name: sender.weight for sender in senders}
    served: dict[tuple[int, Priority], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    requests: Counter[tuple[int, Priority, str]] = Counter()
    backlogged: dict[tuple[int, Priority], set[str]] = defaultdict(set)
    for record in diary.records:
        arrival = record.arrival
        if not any(span.holds(record.sent_at) for span in spans):
            continue
        window = int(record.sent_at // FAIR_WINDOW_S), arrival.priority
        if record.fate is Fate.REFUSED:
            backlogged[window].add(arrival.tenant)
        elif record.admitted_at is not None:
            tokens = arrival.prompt_tokens + arrival.output_tokens
            served[window][arrival.tenant] += tokens / weight[arrival.tenant]
            requests[(*window, arrival.tenant)] += 1
    indices = []
    for window, tenants in backlogged.items():
        shares = [served[window][tenant] for tenant in sorted(tenants)]
        enough = sum(requests[(*window, tenant)] for tenant in tenants) >= FAIR_LEAST * len(tenants)
        if len(shares) > 1 and enough:
            indices.append(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))
    return sum(indices) / len(indices) if indices else None


def reaction_s(records: Iterable[Record], spans: Sequence[Span]) -> float | None:
    """The longest time from a step up to the last P0 miss in its phase, where P0 alone fits; None without a step up."""
    steps = [after for before, after in pairwise(spans) if before.rho < after.rho and after.p0_fits]
    if not steps:
        return None
    missed = [record.sent_at for record in p0_sent(records, steps) if not in_target(record)]
    return max(max((at - step.from_s for at in missed if step.holds(at)), default=0.0) for step in steps)


def recovery_s(records: Iterable[Record], spans: Sequence[Span]) -> float | None:
    """From the load's return below capacity to the last refusal; None without such a return."""
    backs = [after for before, after in pairwise(spans) if before.rho > 1 and after.rho < 1]
    if not backs:
        return None
    ends = [r.ended_at for r in records if r.fate is Fate.REFUSED and r.ended_at is not None]
    return max(max((at - back.from_s for at in ends if back.holds(at)), default=0.0) for back in backs)


def amplification(records: Iterable[Record]) -> float | None:
    """Attempts per request of the clients that do as they are told; None where nobody tries again."""
    obedient = [record for record in records if record.arrival.obeys and stays(record)]
    first = sum(record.attempt == 0 for record in obedient)
    return len(obedient) / first if first else None


Second = tuple[int, int, int, int]
"""Of what was sent in one second: the second, output tokens of answers within target, refusals, P0 missed."""


def by_second(diary: Diary, from_s: float, until_s: float) -> tuple[Second, ...]:
    """What was sent in each second of that time, and what became of it; seconds count from `from_s`."""
    good, refused, missed = Counter[int](), Counter[int](), Counter[int]()
    for record in diary.records:
        if not from_s <= record.sent_at < until_s:
            continue
        second = int(record.sent_at - from_s)
        refused[second] += record.fate is Fate.REFUSED
        if in_target(record):
            good[second] += record.arrival.output_tokens
        elif record.arrival.priority is Priority.P0 and stays(record):
            missed[second] += 1
    return tuple((second, good[second], refused[second], missed[second]) for second in range(round(until_s - from_s)))
