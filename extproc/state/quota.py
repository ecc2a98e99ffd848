"""Quotas over Redis: decided here and at once, told to the others right afterwards. No request waits for it.

A replica decides by what all have used as it last heard, and by what it let its tenant use since. That it tells by a call
per tenant, at once and then `TELL_EVERY_S` apart while there is more to tell; the answer says what the tenant owes over all
replicas. So a quota may be overrun by what other replicas admit between two calls of theirs. The overrun is owed like all
use and paid off by waiting: over time no more is used than the quota.

While the store does not answer, use costs a tenant as many times as there were replicas, so that all together stay within
the quota; what a replica has to tell afterwards fades meanwhile as its part of the quota refills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import Tenant
from extproc.quota import NOTHING_DUE, UNTOUCHED, Due, due, quota_of
from extproc.state.deadline import Deadline
from extproc.state.link import Line, run
from extproc.state.scripts import Script, quota_keys, read_owed
from extproc.state.watch import Watch

TELL_EVERY_S = 0.1
TRY_AGAIN_S = 0.25
_ABANDON_S = 1.0
_LAST_WORD_S = 0.2
_QUOTA = Script("quota")
_log = structlog.get_logger(__name__)


class _Account:
    """One tenant's quota as this replica sees it. `bucket`: own use included. `told`: use in the call whose answer has not
    come; it is told again under the same number. `untold`: use since."""

    __slots__ = ("alone", "bucket", "number", "telling", "tenant", "told", "untold")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.bucket = UNTOUCHED
        self.told = NOTHING_DUE
        self.untold = NOTHING_DUE
        self.number = 0
        self.alone = False
        """The store did not answer the last call in time."""
        self.telling = False

    @property
    def settled(self) -> bool:
        return not self.alone and self.told == NOTHING_DUE and self.untold == NOTHING_DUE


class SharedQuota:
    """Implements `ports.Quota`. `replicas`: how many there are, as last heard."""

    def __init__(
        self, replica: str, *, link: Line, prefix: str, clock: Clock, watch: Watch, replicas: Callable[[], int]
    ) -> None:
        self._replica = replica
        self._link = link
        self._prefix = prefix
        self._clock = clock
        self._watch = watch
        self._replicas = replicas
        self._accounts: dict[str, _Account] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._trying = asyncio.Lock()

    def wait_s(self, tenant: Tenant, tokens: float) -> float:
        account, allowance = self._account(tenant), quota_of(tenant)
        wanted = due(allowance, tokens).scaled(self._times(account))
        return account.bucket.wait_s(wanted, allowance, self._clock.now())

    def reserve(self, tenant: Tenant, tokens: float) -> Callable[[], None]:
        account, used = self._account(tenant), due(quota_of(tenant), tokens)
        times = self._times(account)
        self._use(account, used, times)
        return lambda: self._use(account, used.scaled(-1), times if account.alone else 1.0)

    def left(self, tenant: Tenant) -> tuple[float, float]:
        return self._account(tenant).bucket.left(quota_of(tenant), self._clock.now())

    async def run(self) -> None:
        """Until cancelled; at the end it tells what is left to tell, if it can at once."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    for account in self._accounts.values():
                        self._tell_soon(account)
                    await asyncio.Event().wait()
                finally:
                    self._tasks = None  # it takes no more
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_S):
                    for account in self._accounts.values():
                        if not (account.settled or account.alone):
                            await self._call(account)

    def _account(self, tenant: Tenant) -> _Account:
        """Bounded: only tenants that a policy lists have a quota."""
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._accounts[tenant.name] = _Account(tenant.name)
        return account

    def _times(self, account: _Account) -> float:
        """What use costs here, as a multiple."""
        return float(max(1, self._replicas())) if account.alone else 1.0

    def _use(self, account: _Account, used: Due, times: float) -> None:
        account.bucket = account.bucket.after(used.scaled(times), self._clock.now())
        account.untold += used
        self._tell_soon(account)

    def _tell_soon(self, account: _Account) -> None:
        if self._tasks is not None and not account.telling and not account.settled:
            account.telling = True
            self._tasks.create_task(self._tell(account), name=f"quota {account.tenant}")

    async def _tell(self, account: _Account) -> None:
        """While there is something to tell, or nothing to be heard."""
        try:
            while not account.settled:
                if account.alone:
                    await self._try_again(account)
                else:
                    await self._call(account)
                    await asyncio.sleep(TELL_EVERY_S)
        finally:
            account.telling = False

    async def _try_again(self, account: _Account) -> None:
        """One at a time, however many tenants there are: a store in trouble is not stormed."""
        async with self._trying:
            await self._call(account)
            if account.alone:
                await asyncio.sleep(TRY_AGAIN_S)

    async def _call(self, account: _Account) -> None:
        now = self._clock.now()
        if account.alone:
            account.untold = account.untold.at_most(account.bucket.owed(now).scaled(1 / self._times(account)))
        if account.told == NOTHING_DUE:
            account.number += 1
            account.told, account.untold = account.untold, NOTHING_DUE
        keys = quota_keys(self._prefix, account.tenant, self._replica)
        arguments = ("", account.number, account.told.tokens_s, account.told.requests_s)
        deadline = Deadline(self._clock, lambda: self._go_alone(account))
        try:
            owed = read_owed(await run(self._link, _QUOTA, keys, arguments, within_s=_ABANDON_S))
        except (StateUnavailable, msgspec.DecodeError, TypeError) as error:
            self._watch.state_called(error.kind if isinstance(error, StateUnavailable) else "unreadable")
            self._go_alone(account)
            return
        finally:
            deadline.cancel()
        account.told = NOTHING_DUE
        self._watch.state_called("late" if deadline.passed else "ok")
        if not deadline.passed:
            self._hear(account, owed)

    def _hear(self, account: _Account, owed: Due) -> None:
        now = self._clock.now()
        account.bucket = UNTOUCHED.after(owed, now).after(account.untold, now)
        if account.alone:
            account.alone = False
            _log.info("quota_shared_again", tenant=account.tenant)

    def _go_alone(self, account: _Account) -> None:
        if not account.alone:
            account.alone = True
            _log.info("quota_alone", tenant=account.tenant, replicas=self._replicas())
