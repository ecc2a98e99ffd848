"""What a replica says of itself with each call: numbered reports, and now and then its traffic's counters. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.account import Report
from extproc.capacity import Ghosts
from extproc.model import Load
from extproc.ports import TrafficSource, Want
from extproc.state.demand import pack_told
from extproc.state.standing import Standing

_COUNTERS_S = 0.4
_FORGOTTEN_S = 30.0
"""Unheard for so long, an entry may be forgotten with nothing lost."""


class Reports:
    """Of one start of a process. `policy`: the hash of the one in force here; `traffic`: where the counters for the leader's
    controllers come from."""

    def __init__(self, replica: str) -> None:
        self.policy = ""
        self.traffic: TrafficSource | None = None
        self._replica = replica
        self._seq = 0
        self._acked = 0
        self._counters_at = -math.inf

    def next(
        self, now: float, standing: Standing, *, in_use: tuple[Load, Load, Load], ghosts: Ghosts, wants: Sequence[Want]
    ) -> Report:
        """Who is alone asks for nothing."""
        self._seq += 1
        if standing.unheard_s(now) > _FORGOTTEN_S:
            self._acked = 0
        return Report(
            replica=self._replica,
            seq=self._seq,
            in_use=in_use,
            acked=self._acked,
            alone=standing.alone,
            returning=standing.returning(now),
            policy=self.policy,
            ghosts=ghosts.left(now),
            hold=ghosts.hold,
            wants=() if standing.alone else wants,
        )

    def answered(self, report: Report) -> None:
        self._acked = report.seq

    def counters(self, now: float) -> str:
        """Empty where they have been told lately."""
        if self.traffic is None or now - self._counters_at < _COUNTERS_S:
            return ""
        self._counters_at = now
        return pack_told(self.traffic.demand(now), self.traffic.finished)
