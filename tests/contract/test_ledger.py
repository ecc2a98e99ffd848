"""What every ledger promises, over every implementation: in this process, and over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from extproc.clock import LoopClock
from extproc.model import NOTHING, Hold, Load, PoolState, Priority
from extproc.ports import Ask, Ledger, Verdicts, Want
from extproc.state.local import LocalLedger
from tests.support import valkey
from tests.support.pools import limited
from tests.support.shared import put_state, replica

ONE = Load(10, 1)
P0, P1, P2 = Priority

Publish = Callable[[PoolState], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Server]:
    with valkey.running(tmp_path_factory.mktemp("v")) as running:
        yield running


@pytest.fixture(params=["local", "redis"])
async def both(request: pytest.FixtureRequest, server: valkey.Server) -> AsyncIterator[tuple[Ledger, Publish]]:
    if request.param == "local":
        local = LocalLedger(limited(slots=2), LoopClock(asyncio.get_running_loop()))
        yield local, local.publish
        return
    with server.client() as client:
        client.flushall()
    put_state(server, limited(slots=2))
    async with replica("a", server.url, may_lead=True) as node:
        await asyncio.wait_for(node.shared.in_charge.wait(), 2)
        yield node.ledger, node.shared.publish


@pytest.fixture
def ledger(both: tuple[Ledger, Publish]) -> Ledger:
    return both[0]


async def ask(
    ledger: Ledger, *wants: Priority, held: int = 0, ghosts: Load = NOTHING, hold: Hold | None = None
) -> Verdicts:
    answer: asyncio.Future[Verdicts] = asyncio.get_running_loop().create_future()
    in_use = (NOTHING, ONE.scaled(held), NOTHING)
    line = [Want(priority, ONE) for priority in wants]
    ledger.ask(Ask(in_use=in_use, wants=line, ghosts=ghosts, hold=hold), answer.set_result)
    return await asyncio.wait_for(answer, 2)


async def test_admits_from_the_front_up_to_the_limit(ledger: Ledger) -> None:
    verdicts = await ask(ledger, P0, P1, P2)
    assert verdicts.admitted == 2
    assert verdicts.total == Load(20, 2)
    assert verdicts.ask_again_s is None


async def test_what_is_in_use_is_absolute_so_that_saying_it_twice_changes_nothing(ledger: Ledger) -> None:
    assert (await ask(ledger, held=1)).total == (await ask(ledger, held=1)).total == Load(10, 1)
    assert (await ask(ledger, P1, P1, held=1)).admitted == 1


async def test_an_ask_without_wants_reports_only(ledger: Ledger) -> None:
    verdicts = await ask(ledger, held=2)
    assert verdicts.admitted == 0
    assert verdicts.ask_again_s is None


async def test_ghost_load_holds_and_decays_with_the_mean_hold(ledger: Ledger) -> None:
    held_up = await ask(ledger, P1, ghosts=Load(20, 2), hold=Hold(0.4))
    assert held_up.admitted == 0
    assert held_up.ask_again_s == pytest.approx(0.02)
    await asyncio.sleep(0.4 * 0.75)  # e^-0.75 of two slots leave room for one more
    assert (await ask(ledger, P1)).admitted == 1
    await asyncio.sleep(0.4)
    assert (await ask(ledger, P1, P1)).admitted == 2


async def test_a_published_state_holds_for_the_next_asks_and_wakes(both: tuple[Ledger, Publish]) -> None:
    ledger, publish = both
    woken = asyncio.Event()
    ledger.on_wake(woken.set)
    publish(limited(slots=5))
    await asyncio.wait_for(woken.wait(), 2)
    assert (await ask(ledger, P0, P0, P0)).admitted == 3
    assert ledger.state.limits == limited(slots=5).limits


async def test_what_is_answered_at_once_is_what_an_ask_would_be_answered(both: tuple[Ledger, Publish]) -> None:
    ledger, _ = both
    three = Ask((NOTHING, ONE, NOTHING), [Want(priority, ONE) for priority in (P0, P1, P2)])
    verdicts = ledger.at_once(three)
    if isinstance(ledger, LocalLedger):
        assert verdicts == await ask(ledger, P0, P1, P2, held=1)
    else:
        assert verdicts is None
