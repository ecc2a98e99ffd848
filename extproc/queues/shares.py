"""What each tenant of one priority holds, and whether that is more than its share. Pure, bounded.

Where nobody may wait there is no queue to be fair in. There some room above the high watermark is kept from the tenant
that holds most, for its weight: as much as the others hold already and one request more for each. A flood fills the pool up
to that, and whoever else comes still finds a place.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from extproc.model import NOTHING, Load, Tenant

ACTIVE_S = 10.0
"""A tenant counts among those who share for this long after its last request, and while it holds anything."""
MOST_TENANTS = 4096
"""Beyond it tenants are counted together, as one of weight 1."""
_OTHERS = Tenant("(others)")


@dataclass(slots=True)
class Holding:
    """One tenant's. `load`: in use, `seen_at`: clock seconds of its last request."""

    tenant: Tenant
    load: Load
    seen_at: float

    @property
    def normal(self) -> float:
        """What it holds for its weight."""
        return self.load.tokens / self.tenant.weight


class Shares:
    """The active tenants of one priority, longest unseen first."""

    __slots__ = ("_holdings", "_load", "_most")

    def __init__(self) -> None:
        self._holdings: OrderedDict[str, Holding] = OrderedDict()
        self._load = NOTHING
        self._most: Holding | None = None
        """Who was last seen to hold most. Corrected whenever somebody who holds more begins or asks."""

    def __len__(self) -> int:
        return len(self._holdings)

    def seen(self, tenant: Tenant, now: float) -> None:
        """A request of the tenant arrived."""
        holding = self._holding(tenant, now)
        holding.seen_at = now
        self._holdings.move_to_end(holding.tenant.name)
        self._forget_idle(now)

    def began(self, tenant: Tenant, load: Load, now: float) -> Tenant:
        """A request of the tenant was admitted. Returns under which name that counts; `ended` wants it back."""
        holding = self._holding(tenant, now)
        holding.load += load
        self._load += load
        self._is_most(holding)
        return holding.tenant

    def ended(self, counted_as: Tenant, load: Load) -> None:
        """It ended. Who holds anything is never forgotten, so the name is still there."""
        holding = self._holdings[counted_as.name]
        holding.load = holding.load - load
        self._load = self._load - load

    def must_leave_room(self, tenant: Tenant, left: Load, mean: Load) -> bool:
        """The tenant holds most, and no more is `left` than the others should find. `mean`: of one request."""
        holding = self._holdings.get(tenant.name) or self._holdings.get(_OTHERS.name)
        if holding is None or len(self._holdings) < 2 or not self._is_most(holding):
            return False
        others = self._load - holding.load + mean.scaled(len(self._holdings) - 1)
        return left.tokens < others.tokens or left.slots < others.slots

    def _is_most(self, holding: Holding) -> bool:
        if self._most is not holding and (self._most is None or holding.normal >= self._most.normal):
            self._most = holding
        return self._most is holding

    def largest(self, most: int) -> list[Holding]:
        """Who holds most, for people to look at."""
        return sorted(self._holdings.values(), key=lambda holding: -holding.load.tokens)[:most]

    def _holding(self, tenant: Tenant, now: float) -> Holding:
        holding = self._holdings.get(tenant.name)
        if holding is None and len(self._holdings) >= MOST_TENANTS:
            tenant = _OTHERS
            holding = self._holdings.get(tenant.name)
        if holding is None:
            holding = self._holdings[tenant.name] = Holding(tenant, NOTHING, now)
        holding.tenant = tenant  # its weight may be another policy's
        return holding

    def _forget_idle(self, now: float) -> None:
        """At most two a call: one more than a call can add, so it keeps up."""
        for _ in range(2):
            name, holding = next(iter(self._holdings.items()))
            if now - holding.seen_at <= ACTIVE_S:
                return
            if not holding.load.empty:
                holding.seen_at = now
                self._holdings.move_to_end(name)
            else:
                del self._holdings[name]
