"""What one request has reserved of its tenant's quota, followed to where it is served or not; and what people see of quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from extproc.model import Rejection, Tenant
from extproc.ports import Quota
from extproc.snapshots import TenantSnapshot
from extproc.tickets import Ticket, Waiting

MOST_SHOWN = 100
"""Tenants in a snapshot, those with the least left first."""


class Reservation:
    """Given back where the request is refused, leaves the queue, or is failed by its engine; kept where it was served, or
    where Envoy may have let it pass."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def follow(self, answer: Ticket | Waiting | Rejection) -> Ticket | Waiting | Rejection:
        """The answer to pass on in place of the one given."""
        if not isinstance(answer, Waiting):
            self._settle(answer)
            return answer
        waiting = answer
        waiting.verdict.add_done_callback(self._on_verdict)  # first of all, so it runs before whoever waits goes on

        def on_leave(ghost: bool) -> None:
            waiting.leave(ghost=ghost)
            if not ghost:
                self.give_back()

        return Waiting(
            verdict=waiting.verdict,
            longest_wait_s=waiting.longest_wait_s,
            on_leave=on_leave,
            soon=waiting.soon,
        )

    def give_back(self) -> None:
        """Later calls change nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def _on_verdict(self, verdict: asyncio.Future[Ticket | Rejection]) -> None:
        if not verdict.cancelled():
            self._settle(verdict.result())

    def _settle(self, answer: Ticket | Rejection) -> None:
        if isinstance(answer, Ticket):
            answer.refund = self.give_back
        else:
            self.give_back()


def tenant_snapshots(tenants: Iterable[Tenant], quota: Quota) -> tuple[TenantSnapshot, ...]:
    """Of those that have a quota."""
    found = [_snapshot(tenant, quota) for tenant in tenants if tenant.quota is not None]
    return tuple(sorted(found, key=lambda tenant: tenant.share_left)[:MOST_SHOWN])


def _snapshot(tenant: Tenant, quota: Quota) -> TenantSnapshot:
    assert tenant.quota is not None
    tokens, requests = quota.left(tenant)
    return TenantSnapshot(tenant.name, tenant.quota, tokens_left=tokens, requests_left=requests)
