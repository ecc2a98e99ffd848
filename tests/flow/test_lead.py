"""The end of a lead, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from extproc.clock import LoopClock
from extproc.sim.world.store import VirtualLine, VirtualStore
from extproc.state.call import Argument, Heard
from extproc.state.lead import Lead
from extproc.state.scripts import Script, keys_of
from tests.support.virtual import virtual


class Searching(VirtualLine):
    """`for_ever`: as while a cluster's nodes are looked for and none answers, which is no part of a call's own time."""

    for_ever = False

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        if self.for_ever:
            return lambda: None
        return super().call(script, keys, arguments, within_s=within_s, heard=heard)


@virtual
async def test_a_farewell_waits_for_no_search() -> None:
    loop = asyncio.get_running_loop()
    line = Searching(VirtualStore(loop))
    taken = asyncio.Event()
    lead = Lead("main", "a", link=line, keys=keys_of("test", "main"), clock=LoopClock(loop), on_change=taken.set)
    running = asyncio.ensure_future(lead.run())
    await taken.wait()
    running.cancel()
    line.for_ever = True
    await asyncio.wait_for(lead.give_up(), 0.5)
    assert not lead.leading
