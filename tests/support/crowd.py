"""What happens at the replicas of one pool, step by step: dispatchers over a ledger of their own, or over a shared one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from extproc.clock import LoopClock
from extproc.config import parse_policy
from extproc.dispatcher import Dispatcher
from extproc.identity import Sender
from extproc.levels import Levels
from extproc.model import NOTHING, Cost, End, Load, PoolState, Priority, Rejection, Tenant
from extproc.ports import Ledger
from extproc.sim.world.store import Uncounted, VirtualLine, VirtualStore
from extproc.state.redis import SharedPool
from extproc.state.scripts import Script, keys_of, pack_state
from extproc.submission import Submission
from extproc.tickets import Ticket, Waiting
from tests.support.observing import Remembering

KEYS = keys_of("test", "main")
LONGEST_S = 3000.0

POLICIES = [
    parse_policy(f"""
envoy: {{messageTimeout: 250ms, maxMessageTimeout: 3600s}}
queues:
  - {{priority: 0, name: zero, maxQueueSize: {size}, timeout: 900s}}
  - {{priority: 1, name: one, maxQueueSize: {size}, timeout: 900s, dropPolicy: tail}}
  - {{priority: 2, name: two, maxQueueSize: {size}, timeout: 900s, dropPolicy: {batch}}}
""")
    for size, batch in [(40, "tail"), (3, "tail"), (40, "fast-reject")]
]
TENANTS = [Tenant("a", weight=1), Tenant("b", weight=0.1), Tenant("c", weight=10)]


class Kind(StrEnum):
    """What happens. GHOST: a stream breaks; LOST: nobody reaches the store, or all do again; KILLED: a process is gone."""

    SEND = "send"
    END = "end"
    LEAVE = "leave"
    GHOST = "ghost"
    STATE = "state"
    POLICY = "policy"
    LOST = "lost"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Step:
    """At one replica; `which` of what there is; then nothing for so long."""

    kind: Kind
    replica: int
    which: int
    priority: Priority
    tokens: int
    then_s: float


def admitted(sent: Ticket | Waiting) -> Ticket | None:
    if isinstance(sent, Ticket):
        return sent
    verdict = sent.verdict.result() if sent.verdict.done() and not sent.verdict.cancelled() else None
    return verdict if isinstance(verdict, Ticket) else None


class Replica:
    """A dispatcher and who is there."""

    def __init__(
        self, ledger: Ledger, clock: LoopClock, *, put: Callable[[PoolState], None], line: VirtualLine | None = None
    ) -> None:
        self.alive = True
        self._line = line
        self._put = put
        self._sent: list[Ticket | Waiting] = []
        policy = POLICIES[0]
        self.dispatcher = Dispatcher(
            policy.pools[0],
            policy.queues,
            retry=policy.retry_after,
            longest_wait_s=LONGEST_S,
            ledger=ledger,
            clock=clock,
            observer=Remembering(),
            levels=Levels(b""),
            wall=clock.now,
            new_future=asyncio.get_running_loop().create_future,
        )

    def act(self, step: Step, states: Sequence[PoolState]) -> None:
        match step.kind:
            case Kind.SEND:
                self._send(Submission(step.priority, Cost(step.tokens, 0), tenant=TENANTS[step.which % len(TENANTS)]))
            case Kind.END | Kind.GHOST:
                self._end(step.which, End.COMPLETED if step.kind is Kind.END else End.GHOST)
            case Kind.LEAVE:
                if waiting := [one for one in self._sent if isinstance(one, Waiting) and not one.verdict.done()]:
                    waiting[step.which % len(waiting)].leave(ghost=step.which == 0)
            case Kind.STATE:
                self._put(states[step.which % len(states)])
            case Kind.POLICY:
                policy = POLICIES[step.which % len(POLICIES)]
                self.dispatcher.use(
                    policy.pools[0], policy.queues, retry=policy.retry_after, longest_wait_s=LONGEST_S, secret=b""
                )
            case Kind.KILLED if self._line is not None:
                self._line.dead, self.alive = True, False

    def _send(self, submission: Submission) -> None:
        sent = self.dispatcher.refuse_on_arrival(submission, lambda: Sender(b"")) or self.dispatcher.submit(submission)
        if not isinstance(sent, Rejection):
            self._sent.append(sent)

    def _end(self, which: int, how: End) -> None:
        running = [ticket for one in self._sent if (ticket := admitted(one)) is not None and ticket.ended is None]
        if running:
            running[which % len(running)].end(how)


class Shared:
    """Replicas of one pool. A leader's message reaches them, as far as the store does."""

    def __init__(self, count: int, first: PoolState) -> None:
        loop = asyncio.get_running_loop()
        self.clock, self.store = LoopClock(loop), VirtualStore(loop)
        self.put(first)
        lines = [VirtualLine(self.store) for _ in range(count)]
        self._pools = [self._pool(f"r{number}", line) for number, line in enumerate(lines)]
        self.replicas = [
            Replica(pool.ledger, self.clock, put=self.put, line=line)
            for pool, line in zip(self._pools, lines, strict=True)
        ]
        self.running = [asyncio.ensure_future(pool.run()) for pool in self._pools]

    def put(self, state: PoolState) -> None:
        self.state = state
        packed, fingerprint = pack_state(state)
        arguments = ("", "leader", 0, 0.0, packed, fingerprint, KEYS.channel, 1)
        self.store.run(Script("publish"), (KEYS.facts, KEYS.demand), arguments)

    def act(self, step: Step, states: Sequence[PoolState]) -> None:
        if step.kind is Kind.LOST:
            self.store.lost = not self.store.lost
        elif (replica := self.replicas[step.replica % len(self.replicas)]).alive:
            replica.act(step, states)

    @property
    def living(self) -> list[Replica]:
        return [one for one in self.replicas if one.alive]

    @property
    def ghosts(self) -> Load:
        """By the store's account all that is held, but by those who live."""
        total = self.store.content()[KEYS.facts].account.total(self.store.now)
        return total - sum((load for one in self.living for load in one.dispatcher.in_use), NOTHING)

    async def stop(self) -> None:
        assert not any(task.done() for task in self.running)
        for task in self.running:
            task.cancel()
        await asyncio.wait(self.running)

    def _pool(self, name: str, line: VirtualLine) -> SharedPool:
        nothing = PoolState(limits=(NOTHING,) * 3)
        return SharedPool(
            "main",
            name,
            link=line,
            prefix="test",
            initial=nothing,
            clock=self.clock,
            watch=Uncounted(),
            may_lead=False,
            asks=True,
        )
