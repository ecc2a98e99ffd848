"""The account of one pool's capacity over all its replicas. Pure: the reference of `redis/ask.lua`, line by line.

Replicas report absolute numbers, each report with a number above the last (`seq`), so that a report that is lost, late,
repeated or out of order changes nothing that the next one does not correct. What the account admits it adds to the
replica's entry at once; so an entry is never below what its replica holds, and the sum of entries is what is open at most.

- A replica is heard through its reports. After `DEAD_AFTER_S` of silence its entry fades as ghost load: its requests
  still run. If it wakes, its next report takes the entry's place. Its waiters are heard for `HEARD_FOR_S`.
- Wants are admitted in order while they fit, and none passes over a waiter elsewhere that is more important, or as
  important and waiting longer. Who would be next, and fits, is to be woken.
- A *generation* begins where entries were lost: the account is empty, or a replica was promised more than its entry
  knows. In its first `REPORT_S` a replica only replaces what ends, until all have reported; the same holds for a replica
  that returns from being cut off. Then its cap rises to the limit until `RAMP_S`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extproc.capacity import GHOST_HOLD_S, faded, fits, look_again_s
from extproc.model import NOTHING, PRIORITIES, UNLIMITED, Load, PoolState, Priority
from extproc.ports import Want

DEAD_AFTER_S = 2.0
HEARD_FOR_S = 1.0
REPORT_S = 1.0
RAMP_S = 2.0
FORGET_AFTER_S = 60.0
"""A silent entry is kept at least so long: its number tells whether the account lost something."""
KEEP_HEARD_S = 0.2
"""A replica with waiters asks again this often: others must hear of them, and a wake may be lost."""
NO_STATE_AGAIN_S = 0.05


class Head(NamedTuple):
    """A waiter first in its priority on its replica; sorts in the order of the whole line. `since`: account seconds."""

    priority: Priority
    since: float
    replica: str
    load: Load


@dataclass(frozen=True, slots=True)
class Report:
    """One replica's call. `replica`: unique to this start of its process. `acked`: the last `seq` it heard an answer to.

    `ghosts`: its ghost load now, absolute. `returning`: it comes back from being cut off, and may have admitted by itself.
    """

    replica: str
    seq: int
    in_use: tuple[Load, Load, Load]
    acked: int = 0
    returning: bool = False
    ghosts: Load = NOTHING
    hold_s: float | None = None
    wants: Sequence[Want] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """What the account knows of a replica. `base`: what it may hold at first in this generation, or since it returned."""

    seq: int
    at: float
    generation: float
    in_use: tuple[Load, Load, Load]
    ghosts: Load
    hold_s: float
    heads: tuple[Head, ...] = ()
    base: Load | None = None
    base_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The account's answer. `replicas`: heard of lately, the caller included. `wake`: the replica whose turn it is now.

    `again_s`: when to ask again without a wake; None: there is no need.
    """

    admitted: int
    total: Load
    replicas: int
    again_s: float | None = None
    wake: str | None = None


@dataclass(slots=True)
class _Elsewhere:
    """What all others hold, and the first of their waiters."""

    used: list[Load]
    ghosts: Load = NOTHING
    replicas: int = 0
    first: Head | None = None


class Account:
    """`generation`: when it began, in account seconds; None: with the first report. `state` None: no limit is known yet."""

    def __init__(self, state: PoolState | None = None, generation: float | None = None) -> None:
        self.state = state
        self.generation = generation
        self.entries: dict[str, Entry] = {}

    def ask(self, now: float, report: Report) -> Settled | None:
        """None: the report is not newer than the last and is ignored."""
        before = self.entries.get(report.replica)
        known = 0 if before is None else before.seq
        if report.seq <= known:
            return None
        if self.generation is None or (report.acked > known and now - self.generation >= REPORT_S):
            self.generation = now
        base, base_at = self._base(now, report, before)
        elsewhere = self._elsewhere(now, report.replica)
        used = [others + own for others, own in zip(elsewhere.used, report.in_use, strict=True)]
        ghosts = elsewhere.ghosts + report.ghosts
        cap = UNLIMITED if self.state is None else _cap(base, now - base_at, self.state.limits[0])
        in_use = list(report.in_use)
        admitted, capped = self._admit(now, report, elsewhere.first, used=used, ghosts=ghosts, in_use=in_use, cap=cap)
        heads = () if capped else _heads(report, admitted, now)
        first, second, third = in_use
        self.entries[report.replica] = Entry(
            seq=report.seq,
            at=now,
            generation=self.generation,
            in_use=(first, second, third),
            ghosts=report.ghosts,
            hold_s=GHOST_HOLD_S if report.hold_s is None else report.hold_s,
            heads=heads,
            base=base,
            base_at=base_at,
        )
        refused = admitted < len(report.wants)
        return Settled(
            admitted=admitted,
            total=sum(used, ghosts),
            replicas=elsewhere.replicas + 1,
            again_s=self._again_s(report, ghosts, alone=elsewhere.replicas == 0 and not capped) if refused else None,
            wake=self._wake(elsewhere.first, heads, used, ghosts),
        )

    def total(self, now: float) -> Load:
        """What is held over all replicas now, ghost load included."""
        elsewhere = self._elsewhere(now, "")
        return sum(elsewhere.used, elsewhere.ghosts)

    def _base(self, now: float, report: Report, before: Entry | None) -> tuple[Load | None, float]:
        generation = now if self.generation is None else self.generation
        anew = before is None or before.generation != generation
        if report.returning:
            return sum(report.in_use, NOTHING), now
        if anew and now - generation < REPORT_S:
            return sum(report.in_use, NOTHING), generation
        if before is None or now - before.base_at >= RAMP_S:
            return None, 0.0
        return before.base, before.base_at

    def _elsewhere(self, now: float, replica: str) -> _Elsewhere:
        found = _Elsewhere([NOTHING, NOTHING, NOTHING])
        for name, entry in list(self.entries.items()):
            if name == replica:
                continue
            silent_s = now - entry.at
            if silent_s <= DEAD_AFTER_S:
                found.replicas += 1
                found.ghosts += entry.ghosts
                for priority in PRIORITIES:
                    found.used[priority] += entry.in_use[priority]
                if silent_s <= HEARD_FOR_S:
                    found.first = min((head for head in (found.first, *entry.heads) if head is not None), default=None)
                continue
            left = faded(sum(entry.in_use, entry.ghosts), silent_s - DEAD_AFTER_S, entry.hold_s)
            found.ghosts += left
            if left.empty and silent_s > FORGET_AFTER_S:
                del self.entries[name]
        return found

    def _admit(
        self,
        now: float,
        report: Report,
        first: Head | None,
        *,
        used: list[Load],
        ghosts: Load,
        in_use: list[Load],
        cap: Load,
    ) -> tuple[int, bool]:
        """How many go, and whether it was the replica's own cap that stopped the line. Adds them to `used` and `in_use`."""
        if self.state is None:
            return 0, False
        for count, want in enumerate(report.wants):
            if first is not None and first < Head(want.priority, now - want.waited_s, report.replica, want.load):
                return count, False
            if not (sum(in_use, NOTHING) + want.load).fits(cap):
                return count, True
            if not fits(want, used, ghosts, self.state):
                return count, False
            used[want.priority] += want.load
            in_use[want.priority] += want.load
        return len(report.wants), False

    def _again_s(self, report: Report, ghosts: Load, *, alone: bool) -> float | None:
        if self.state is None:
            return NO_STATE_AGAIN_S
        hold_s = GHOST_HOLD_S if report.hold_s is None else report.hold_s
        fading_s = look_again_s(ghosts, hold_s)
        if alone:
            return fading_s
        return KEEP_HEARD_S if fading_s is None else min(fading_s, KEEP_HEARD_S)

    def _wake(self, first: Head | None, own: tuple[Head, ...], used: list[Load], ghosts: Load) -> str | None:
        """Who is first in the line, if it waits elsewhere and fits."""
        if self.state is None or first is None or (own and own[0] < first):
            return None
        return first.replica if fits(Want(first.priority, first.load), used, ghosts, self.state) else None


def _heads(report: Report, admitted: int, now: float) -> tuple[Head, ...]:
    """The first waiter of each priority that stays. Priorities that the wants do not reach have their own betters before them."""
    heads: dict[Priority, Head] = {}
    for want in report.wants[admitted:]:
        heads.setdefault(want.priority, Head(want.priority, now - want.waited_s, report.replica, want.load))
    return tuple(sorted(heads.values()))


def _cap(base: Load | None, for_s: float, limit: Load) -> Load:
    """What a replica may hold `for_s` after its base was taken; unbounded where it has none, or has it no more."""
    if base is None or for_s >= RAMP_S:
        return UNLIMITED
    if for_s < REPORT_S:
        return base
    risen = (for_s - REPORT_S) / (RAMP_S - REPORT_S)
    return Load(_between(base.tokens, limit.tokens, risen), _between(base.slots, limit.slots, risen))


def _between(low: float, high: float, share: float) -> float:
    return math.inf if high == math.inf else low + (high - low) * share
