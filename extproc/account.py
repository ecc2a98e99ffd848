"""The account of one pool's capacity over all its replicas. Pure: the reference of `redis/ask.lua`, line by line.

Replicas report absolute numbers, each report with a number above the last (`seq`), so that a report that is lost, late,
repeated or out of order changes nothing that the next one does not correct. What the account admits it adds to the
replica's entry at once; so an entry is never below what its replica holds, and the sum of entries is what is open at most.

- A replica is heard through its reports. After `DEAD_AFTER_S` of silence its entry is ghost load: its requests still run,
  and it fades from when the first of them could have ended. If it wakes, its next report takes the entry's place. Its
  waiters are heard for `HEARD_FOR_S`.
- Wants are admitted in order while they fit, and none passes over a waiter elsewhere that is more important, or as
  important and waiting longer. Who would be next, and fits, is to be woken.
- A *generation* begins where entries were lost: the account is empty, or a replica was promised more than its entry
  knows. In its first `REPORT_S` a replica only replaces what ends, and lets no P2 in, until all have reported. Then its
  cap rises to the limit until `RAMP_S`.
- A replica that goes `alone` reports, but asks for nothing, and may come to hold more than it says. When it returns, it is
  held back in the same way until all whom the account knew when it left have asked again themselves.
- Who is held back by its own cap does not hold up its equals elsewhere, who may go, but the less important.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from extproc.capacity import faded, fits, look_again_s
from extproc.care import RAMP_S, REPORT_S, Care
from extproc.model import NOTHING, PRIORITIES, Hold, Load, PoolState, Priority
from extproc.ports import Want

DEAD_AFTER_S = 2.0
HEARD_FOR_S = 1.0
FORGET_AFTER_S = 60.0
"""A silent entry is kept at least so long: its number tells whether the account lost something."""
KEEP_HEARD_S = 0.2
"""A replica with waiters asks again this often: others must hear of them, and a wake may be lost."""
NO_STATE_AGAIN_S = 0.05
HELD_BACK_AGAIN_S = 0.05
"""Its cap may have risen or gone, and meanwhile the less important wait for it everywhere."""


class Head(NamedTuple):
    """A waiter first in its priority on its replica; sorts in the order of the whole line. `since`: account seconds."""

    priority: Priority
    since: float
    replica: str
    load: Load


class Report(Struct, frozen=True):
    """One replica's call. `replica`: unique to this start of its process. `acked`: the last `seq` it heard an answer to.

    `ghosts`: its ghost load now, absolute. `alone`: it answers by itself for the moment, and asks for nothing.
    `returning`: it asks again after it was alone or away, and may have admitted by itself. `policy`: what it goes by.
    """

    replica: str
    seq: int
    in_use: tuple[Load, Load, Load]
    acked: int = 0
    alone: bool = False
    returning: bool = False
    policy: str = ""
    ghosts: Load = NOTHING
    hold: Hold = Hold()
    wants: Sequence[Want] = ()


class Line(NamedTuple):
    """Who waits at a replica, as it said at `asked_at`, when it was last not alone. `heads`: the first of each priority, in order;
    `held_back`: the priority of the first instead, where the replica's own cap stopped the line."""

    asked_at: float
    heads: tuple[Head, ...] = ()
    held_back: Priority | None = None


class Entry(Struct, frozen=True):
    """What the account knows of a replica. `at`: of its last report."""

    seq: int
    at: float
    generation: float
    in_use: tuple[Load, Load, Load]
    ghosts: Load
    hold: Hold
    line: Line
    care: Care | None = None
    policy: str = ""


class Settled(Struct, frozen=True):
    """The account's answer. `replicas`: heard of lately, the caller included. `wake`: the replica whose turn it is now.

    `again_s`: when to ask again without a wake; None: there is no need. `differing`: of the replicas, how many go by
    another policy than the caller.
    """

    admitted: int
    total: Load
    replicas: int
    again_s: float | None = None
    wake: str | None = None
    differing: int = 0


@dataclass(slots=True)
class _Elsewhere:
    """What all others hold, the first of their waiters, and the most important that only its replica's cap holds back."""

    used: list[Load]
    ghosts: Load = NOTHING
    replicas: int = 0
    differing: int = 0
    first: Head | None = None
    held_back: Priority | None = None


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
        care = self._care(now, report, before)
        elsewhere = self._elsewhere(now, report.replica, report.policy)
        used = [others + own for others, own in zip(elsewhere.used, report.in_use, strict=True)]
        ghosts = elsewhere.ghosts + report.ghosts
        in_use = list(report.in_use)
        admitted, capped = self._admit(now, report, elsewhere, used=used, ghosts=ghosts, in_use=in_use, care=care)
        refused = report.wants[admitted:]
        first, second, third = in_use
        entry = self.entries[report.replica] = Entry(
            seq=report.seq,
            at=now,
            generation=self.generation,
            in_use=(first, second, third),
            ghosts=report.ghosts,
            hold=report.hold,
            line=_line(now, report, before, refused=refused, capped=capped),
            care=care,
            policy=report.policy,
        )
        return Settled(
            admitted=admitted,
            total=sum(used, ghosts),
            replicas=elsewhere.replicas + 1,
            again_s=self._again_s(report, ghosts, others=elsewhere.replicas, capped=capped) if refused else None,
            wake=self._wake(elsewhere, entry.line, used, ghosts),
            differing=elsewhere.differing,
        )

    def total(self, now: float) -> Load:
        """What is held over all replicas now, ghost load included."""
        elsewhere = self._elsewhere(now, "", "")
        return sum(elsewhere.used, elsewhere.ghosts)

    def _care(self, now: float, report: Report, before: Entry | None) -> Care | None:
        generation = now if self.generation is None else self.generation
        if report.returning:
            care = Care(sum(report.in_use, NOTHING), now, _knew_at(before))
        elif (before is None or before.generation != generation) and now - generation < REPORT_S:
            return Care(sum(report.in_use, NOTHING), generation)
        elif before is None or before.care is None or now - before.care.since >= RAMP_S:
            return None
        else:
            care = before.care
        return care if now - generation < REPORT_S or self._awaits(care, report.replica) else None

    def _awaits(self, care: Care, replica: str) -> bool:
        """Somebody whom the account knew when the replica left has not asked again since it returned."""
        since = care.until_all_of
        return since is None or any(
            entry.at >= since and entry.line.asked_at < max(care.since, entry.at)
            for name, entry in self.entries.items()
            if name != replica
        )

    def _elsewhere(self, now: float, replica: str, policy: str) -> _Elsewhere:
        found = _Elsewhere([NOTHING, NOTHING, NOTHING])
        for name, entry in list(self.entries.items()):
            if name == replica:
                continue
            silent_s = now - entry.at
            if silent_s <= DEAD_AFTER_S:
                found.replicas += 1
                found.differing += entry.policy != policy
                found.ghosts += entry.ghosts
                for priority in PRIORITIES:
                    found.used[priority] += entry.in_use[priority]
                if now - entry.line.asked_at <= HEARD_FOR_S:
                    for head in entry.line.heads[:1]:
                        found.first = head if found.first is None else min(found.first, head)
                    found.held_back = _more_important(found.held_back, entry.line.held_back)
                continue
            fades_after_s = max(DEAD_AFTER_S, entry.hold.least_s)
            left = faded(sum(entry.in_use, entry.ghosts), max(0.0, silent_s - fades_after_s), entry.hold.mean_s)
            found.ghosts += left
            if left.empty and silent_s > FORGET_AFTER_S:
                del self.entries[name]
        return found

    def _admit(
        self,
        now: float,
        report: Report,
        elsewhere: _Elsewhere,
        *,
        used: list[Load],
        ghosts: Load,
        in_use: list[Load],
        care: Care | None,
    ) -> tuple[int, bool]:
        """How many go, and whether it was the replica's own cap that stopped the line. Adds them to `used` and `in_use`."""
        if self.state is None:
            return 0, False
        first, held_back = elsewhere.first, elsewhere.held_back
        for count, want in enumerate(report.wants):
            if first is not None and first < Head(want.priority, now - want.waited_s, report.replica, want.load):
                return count, False
            if held_back is not None and held_back < want.priority:
                return count, False
            if care is not None and not care.allows(want, in_use, for_s=now - care.since, limit=self.state.limits[0]):
                return count, True
            if not fits(want, used, ghosts, self.state):
                return count, False
            used[want.priority] += want.load
            in_use[want.priority] += want.load
        return len(report.wants), False

    def _again_s(self, report: Report, ghosts: Load, *, others: int, capped: bool) -> float | None:
        if self.state is None:
            return NO_STATE_AGAIN_S
        if capped:
            return HELD_BACK_AGAIN_S
        fading_s = look_again_s(ghosts, report.hold)
        if not others:
            return fading_s
        return KEEP_HEARD_S if fading_s is None else min(fading_s, KEEP_HEARD_S)

    def _wake(self, elsewhere: _Elsewhere, own: Line, used: list[Load], ghosts: Load) -> str | None:
        """Who is first in the line, if it waits elsewhere and may go."""
        first = elsewhere.first
        if self.state is None or first is None or (own.heads and own.heads[0] < first):
            return None
        held_back = _more_important(elsewhere.held_back, own.held_back)
        if held_back is not None and held_back < first.priority:
            return None
        return first.replica if fits(Want(first.priority, first.load), used, ghosts, self.state) else None


def _line(now: float, report: Report, before: Entry | None, *, refused: Sequence[Want], capped: bool) -> Line:
    """`refused`: the wants that stay. Priorities that they do not reach have their own betters before them."""
    if report.alone:
        return Line(-math.inf) if before is None else before.line
    if capped:
        return Line(now, held_back=refused[0].priority)
    heads: dict[Priority, Head] = {}
    for want in refused:
        heads.setdefault(want.priority, Head(want.priority, now - want.waited_s, report.replica, want.load))
    return Line(now, tuple(sorted(heads.values())))


def _knew_at(before: Entry | None) -> float:
    """Whoever was heard at this time or later was there when the replica left; where it comes back once more, then when it
    first left."""
    if before is None:
        return -math.inf
    former = math.inf if before.care is None or before.care.until_all_of is None else before.care.until_all_of
    return min(former, before.line.asked_at - DEAD_AFTER_S)


def _more_important(one: Priority | None, other: Priority | None) -> Priority | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
