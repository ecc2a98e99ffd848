"""How a replica is held back while others may hold more than the account knows of them. Pure, a part of `account`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.model import NOTHING, Load, Priority
from extproc.ports import Want

REPORT_S = 1.0
RAMP_S = 2.0


@dataclass(frozen=True, slots=True)
class Care:
    """For `REPORT_S` a replica holds at most what it held at `since`, `base`, and lets no P2 in: a P0 may wait somewhere yet
    unheard. Then its cap rises to the limit until `RAMP_S`.

    It is over as soon as all others that were heard at `until_all_of` or later have asked again; None: only by time.
    """

    base: Load
    since: float
    until_all_of: float | None = None

    def allows(self, want: Want, in_use: Sequence[Load], *, for_s: float, limit: Load) -> bool:
        """`in_use`: of this replica. `limit`: the pool's."""
        cap = self.base
        if for_s >= REPORT_S:
            risen = (for_s - REPORT_S) / (RAMP_S - REPORT_S)
            cap = Load(_between(cap.tokens, limit.tokens, risen), _between(cap.slots, limit.slots, risen))
        elif want.priority is Priority.P2:
            return False
        return (sum(in_use, NOTHING) + want.load).fits(cap)


def _between(low: float, high: float, share: float) -> float:
    return math.inf if high == math.inf else low + (high - low) * share
