"""Tenants against each other, in virtual time: a flood harms its sender, shares follow weights, memory is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from msgspec import structs

from extproc.model import End, Outcome, Priority, Rejection, Tenant
from extproc.tickets import Ticket
from tests.support.pools import Pool, limited
from tests.support.virtual import virtual

P0, P1, P2 = Priority
HOLD_S = 1.0
SECONDS = 20
SLOTS = 100


class Market:
    """Tenants that send at random moments; what each gets through is counted in tokens."""

    def __init__(self, policy: str = "{}") -> None:
        self.pool = Pool(limited(slots=SLOTS), policy)
        self.loop = asyncio.get_running_loop()
        self.served: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    async def tenant(
        self, tenant: Tenant, priority: Priority, *, per_s: float, seconds: float, tokens: int = 10
    ) -> None:
        random = Random(tenant.name)
        end = self.loop.time() + seconds
        async with asyncio.TaskGroup() as group:
            while self.loop.time() < end:
                group.create_task(self.one(tenant, priority, tokens))
                await asyncio.sleep(random.expovariate(per_s))

    async def one(self, tenant: Tenant, priority: Priority, tokens: int) -> None:
        self.sent[tenant.name] += 1
        sent = self.pool.send(priority, tokens=tokens, tenant=tenant)
        verdict = sent if isinstance(sent, Ticket | Rejection) else await sent.verdict
        if isinstance(verdict, Ticket):
            await asyncio.sleep(HOLD_S)
            verdict.end(End.COMPLETED)
            self.served[tenant.name] += tokens


def jain(values: list[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


@pytest.mark.parametrize("priority", [P1, P2])
@pytest.mark.parametrize("flooded", [False, True])
def test_a_flood_by_one_tenant_leaves_the_others_what_they_had(priority: Priority, flooded: bool) -> None:
    @virtual
    async def run() -> None:
        market = Market()
        others = [Tenant(f"calm-{i}") for i in range(4)]
        async with asyncio.TaskGroup() as group:
            for tenant in others:
                group.create_task(market.tenant(tenant, priority, per_s=12.5, seconds=60))
            if flooded:
                group.create_task(market.tenant(Tenant("flood"), priority, per_s=250, seconds=60))
        sent, served = (sum(counter[t.name] for t in others) for counter in (market.sent, market.served))
        assert served >= 0.98 * sent * 10
        if flooded:
            assert market.served["flood"] > 0.3 * SLOTS / HOLD_S * 60 * 10
        assert market.pool.slots_in_use == 0

    run()


@pytest.mark.parametrize("priority", [P1, P2])
def test_backlogged_tenants_get_equal_shares_whatever_they_send(priority: Priority) -> None:
    @virtual
    async def run() -> None:
        market = Market()
        rates = {"a": 40.0, "b": 80.0, "c": 120.0, "d": 240.0}
        async with asyncio.TaskGroup() as group:
            for name, rate in rates.items():
                group.create_task(market.tenant(Tenant(name), priority, per_s=rate, seconds=SECONDS))
        assert jain([float(market.served[name]) for name in rates]) >= 0.98
        assert sum(market.served.values()) >= 0.78 * SLOTS / HOLD_S * SECONDS * 10

    run()


@virtual
async def test_shares_follow_weights() -> None:
    market = Market()
    async with asyncio.TaskGroup() as group:
        for name, weight in (("one", 1.0), ("three", 3.0)):
            group.create_task(market.tenant(Tenant(name, weight), P1, per_s=150, seconds=SECONDS))
    assert market.served["three"] / market.served["one"] == pytest.approx(3, rel=0.1)


@virtual
async def test_shares_are_of_tokens_not_of_requests() -> None:
    market = Market()
    async with asyncio.TaskGroup() as group:
        group.create_task(market.tenant(Tenant("large"), P1, per_s=100, seconds=SECONDS, tokens=40))
        group.create_task(market.tenant(Tenant("small"), P1, per_s=200, seconds=SECONDS, tokens=10))
    assert market.served["large"] / market.served["small"] == pytest.approx(1, rel=0.15)


@virtual
async def test_a_full_queue_is_shared_too() -> None:
    """A flood that fills the queue must not make it full for the others."""
    pool = Pool(limited(slots=1), "queues: [{priority: P1, name: one, maxQueueSize: 10, timeout: 15s}]")
    pool.ticket()
    flood = []
    for _ in range(12):
        flood.append(pool.send(tenant=Tenant("flood")))
        await asyncio.sleep(0.001)
    assert [one.outcome for one in flood if isinstance(one, Rejection)] == [Outcome.QUEUE_FULL] * 2
    waiting = pool.send(tenant=Tenant("calm"))
    assert not isinstance(waiting, Ticket | Rejection)
    assert pool.dispatcher.bands.count == 10
    [last] = [one for one in flood if not isinstance(one, Ticket | Rejection) and one.verdict.done()]
    dropped = last.verdict.result()
    assert isinstance(dropped, Rejection)
    assert dropped.outcome is Outcome.QUEUE_FULL
    assert last is flood[9]


@virtual
@pytest.mark.parametrize(
    ("saturation", "refused"), [(0.0, False), (0.7, True)], ids=["nobody waits", "somebody mostly waits"]
)
async def test_where_others_wait_a_flood_of_p2_leaves_them_room_before_there_is_pressure(
    saturation: float, refused: bool
) -> None:
    pool = Pool(structs.replace(limited(slots=20), pressure_at=1.0, saturation=saturation))
    for name in ["flood"] * 12 + ["calm"] * 6:
        assert isinstance(pool.send(P2, tenant=Tenant(name)), Ticket)
    answer = pool.send(P2, tenant=Tenant("flood"))
    assert isinstance(answer, Rejection) == refused
    assert not isinstance(pool.send(P2, tenant=Tenant("calm")), Rejection)


@virtual
async def test_fifty_thousand_tenants_leave_nothing_behind() -> None:
    pool = Pool(limited(slots=100), "queues: [{priority: P2, name: two, maxQueueSize: 1000, timeout: 60s}]")
    for i in range(50_000):
        sent = pool.send(P2, tenant=Tenant(f"random-{i}"))
        if isinstance(sent, Ticket):
            sent.end(End.COMPLETED)
    shares = pool.dispatcher.bands[P2].shares
    assert len(shares) <= 4097
    await asyncio.sleep(60)
    for i in range(5000):
        shares.seen(Tenant("late"), asyncio.get_running_loop().time() + i)
    assert len(shares) == 1
