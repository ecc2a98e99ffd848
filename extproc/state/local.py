"""The ledger and the quotas of one replica, in this process: nothing to install, every ask answered at once.

With one replica the account of `extproc.account` comes down to its arithmetic: nobody else's entries, waiters or losses.
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.capacity import Ghosts, admissible, look_again_s
from extproc.clock import Clock
from extproc.model import NOTHING, Load, PoolState, Tenant, together
from extproc.ports import Ask, Verdicts
from extproc.quota import UNTOUCHED, Bucket, Due, due, quota_of


class LocalLedger:
    """Implements `ports.Ledger` and `ports.Publisher`."""

    def __init__(self, initial: PoolState, clock: Clock) -> None:
        self.state = initial
        self.total = NOTHING
        self._clock = clock
        self._ghosts = Ghosts(clock.now())
        self._wake: Callable[[], None] = lambda: None

    @property
    def replicas(self) -> int:
        return 1

    @property
    def ghosts(self) -> Load:
        """Ghost load now."""
        return self._ghosts.left(self._clock.now())

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        reply(self._answer(ask))

    def at_once(self, ask: Ask) -> Verdicts | None:
        return self._answer(ask)

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def publish(self, state: PoolState) -> None:
        """Puts a new pool state in force and lets the waiters hear of it."""
        self.state = state
        self._wake()

    def _answer(self, ask: Ask) -> Verdicts:
        if ask.hold is not None:
            self._ghosts.hold = ask.hold
        ghosts = self._ghosts.add(ask.ghosts, self._clock.now())
        wants, state = ask.wants, self.state
        admitted = admissible(wants, ask.in_use, ghosts, state)
        total = together(ghosts, ask.in_use)
        for want in wants[:admitted]:
            total += want.load
        self.total = total
        again_s = look_again_s(ghosts, self._ghosts.hold) if admitted < len(wants) else None
        return Verdicts(admitted, state, total, again_s)


class LocalQuota:
    """Implements `ports.Quota`. Bounded: only tenants that a policy lists have a quota."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}

    def wait_s(self, tenant: Tenant, tokens: float) -> float:
        allowance = quota_of(tenant)
        return self._bucket(tenant).wait_s(due(allowance, tokens), allowance, self._clock.now())

    def reserve(self, tenant: Tenant, tokens: float) -> Callable[[], None]:
        used = due(quota_of(tenant), tokens)
        self._use(tenant, used)
        return lambda: self._use(tenant, used.scaled(-1))

    def left(self, tenant: Tenant) -> tuple[float, float]:
        return self._bucket(tenant).left(quota_of(tenant), self._clock.now())

    def _bucket(self, tenant: Tenant) -> Bucket:
        return self._buckets.get(tenant.name, UNTOUCHED)

    def _use(self, tenant: Tenant, used: Due) -> None:
        self._buckets[tenant.name] = self._bucket(tenant).after(used, self._clock.now())
