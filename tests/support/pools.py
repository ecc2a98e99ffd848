"""A pool in a few words: dispatcher, local ledger and observer on the running loop's clock."""

from __future__ import annotations

import asyncio
import math

from msgspec.structs import replace

from extproc.clock import LoopClock
from extproc.config import Policy, parse_policy
from extproc.dispatcher import Dispatcher
from extproc.identity import Sender
from extproc.levels import Levels
from extproc.model import DEFAULT_TENANT, NOTHING, Cost, Load, PoolState, Priority, Rejection, Tenant
from extproc.state.local import LocalLedger
from extproc.submission import Submission
from extproc.tickets import Ticket, Waiting
from tests.support.observing import Remembering


def limited(slots: float = math.inf, tokens: float = math.inf) -> PoolState:
    """A pool state with one limit for all."""
    limit = Load(tokens, slots)
    return PoolState(limits=(limit, limit, limit))


def reserving(state: PoolState, *, p0: float = 0, p1: float = 0) -> PoolState:
    """`p0` slots for P0, `p1` more for P0 and P1."""
    return replace(state, reserved=(Load(0, p0), Load(0, p0 + p1), NOTHING))


class Pool:
    """Needs a running loop."""

    def __init__(self, state: PoolState, policy: str | Policy = "{}") -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.ledger = LocalLedger(state, self.clock)
        self.seen = Remembering()
        self._sent = 0
        self.dispatcher = Dispatcher(
            self.policy.pools[0],
            self.policy.queues,
            retry=self.policy.retry_after,
            longest_wait_s=self.policy.envoy.max_message_timeout_s - 1,
            ledger=self.ledger,
            clock=self.clock,
            observer=self.seen,
            levels=Levels(b""),
            wall=self.clock.now,
            new_future=asyncio.get_running_loop().create_future,
        )

    def send(
        self,
        priority: Priority = Priority.P1,
        *,
        tokens: int = 1,
        patience_s: float = math.inf,
        body_bytes: int = 0,
        tenant: Tenant = DEFAULT_TENANT,
        who: bytes | None = None,
    ) -> Ticket | Waiting | Rejection:
        """`who`: one client's key, the same for its retries; None: one that nobody had before."""
        self._sent += 1
        sender = Sender(b"%d" % self._sent if who is None else who, one_client=True)
        submission = Submission(priority, Cost(tokens, 0), body_bytes=body_bytes, patience_s=patience_s, tenant=tenant)
        return self.dispatcher.refuse_on_arrival(submission, lambda: sender) or self.dispatcher.submit(submission)

    def ticket(self, priority: Priority = Priority.P1, *, tokens: int = 1) -> Ticket:
        sent = self.send(priority, tokens=tokens)
        assert isinstance(sent, Ticket), sent
        return sent

    def waiting(self, priority: Priority = Priority.P1, *, tokens: int = 1, patience_s: float = math.inf) -> Waiting:
        sent = self.send(priority, tokens=tokens, patience_s=patience_s)
        assert isinstance(sent, Waiting), sent
        return sent

    def refused(self, priority: Priority = Priority.P1, *, tokens: int = 1, patience_s: float = math.inf) -> Rejection:
        sent = self.send(priority, tokens=tokens, patience_s=patience_s)
        assert isinstance(sent, Rejection), sent
        return sent

    @property
    def slots_in_use(self) -> float:
        return sum(load.slots for load in self.dispatcher.in_use)
