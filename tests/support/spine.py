"""The real spine over a local ledger with a limit of so many requests, for tests of the edges."""

from __future__ import annotations

import asyncio

from extproc.admission import Admission
from extproc.clock import Clock
from extproc.config import Policy, parse_policy
from extproc.dispatcher import Dispatcher
from extproc.levels import Levels
from extproc.model import Load, PoolState
from extproc.ports import Observer
from extproc.state.local import LocalLedger, LocalQuota


class Spine:
    """One pool named `default`; `limit` requests may run at once."""

    def __init__(self, *, limit: int, clock: Clock, observer: Observer, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        bound = Load(float("inf"), limit)
        self.ledger = LocalLedger(PoolState(limits=(bound, bound, bound)), clock)
        self.dispatcher = Dispatcher(
            self.policy.pools[0],
            self.policy.queues,
            retry=self.policy.retry_after,
            longest_wait_s=self.policy.envoy.max_message_timeout_s - 1.0,
            ledger=self.ledger,
            clock=clock,
            observer=observer,
            levels=Levels(b""),
            wall=clock.now,
            new_future=asyncio.get_running_loop().create_future,
        )
        self.admission = Admission(self.policy, {"default": self.dispatcher}, observer, quota=LocalQuota(clock))

    @property
    def running(self) -> float:
        """Slots in use, ghosts not counted."""
        return sum(load.slots for load in self.dispatcher.in_use)

    @property
    def waiting(self) -> float:
        return sum(load.slots for load in self.dispatcher.bands.waiting())

    @property
    def ghosts(self) -> float:
        """Slots that ghost load holds now."""
        return self.ledger.ghosts.slots


def tail_queues(size: int, *, timeout: str = "8s") -> Policy:
    """`size` requests of each priority may wait, and nobody is refused for pressure. Envoy waits 250 ms, as in `minimal_envoy`."""
    lines = [
        f"  - {{priority: {p}, name: q{p}, maxQueueSize: {size}, timeout: {timeout}, dropPolicy: tail}}"
        for p in range(3)
    ]
    return parse_policy("\n".join(["envoy: {messageTimeout: 250ms}", "queues:", *lines]))
