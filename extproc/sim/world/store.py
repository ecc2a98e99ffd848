"""The store that replicas share, in virtual time: the scripts' reference behind a line that is slow, breaks and loses.

The ledgers, the leads and their packing are the real ones; only Redis itself and the network are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from extproc.account import Account, Report
from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import Hold, Load, PoolState, Priority
from extproc.ports import Want
from extproc.state.call import Argument, Heard
from extproc.state.quota import SharedQuota
from extproc.state.redis import SharedPool
from extproc.state.scripts import Script, read_state

ROUND_TRIP_S = 0.001
_EPOCH_S = 1e6
"""The store's clock is nobody else's."""
_WANTS_FROM = 13
_NOBODY = ("", 0, 0.0)

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[float]).decode


@dataclass(slots=True)
class Content:
    """What the store holds of one pool. `lead`: owner, token, until."""

    account: Account = field(default_factory=Account)
    state: bytes = b""
    fingerprint: str = ""
    lead: tuple[str, int, float] = _NOBODY
    counters: dict[str, tuple[float, str]] = field(default_factory=dict)

    def copy(self) -> Content:
        account = Account(self.account.state, self.account.generation)
        account.entries = dict(self.account.entries)
        return replace(self, account=account, counters=dict(self.counters))


class VirtualStore:
    """One server. `lost`: nobody reaches it; `round_trip_s`: of every call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lost = False
        self.round_trip_s = ROUND_TRIP_S
        self.loop = loop
        self._pools: dict[str, Content] = {}
        self._listeners: dict[str, list[Callable[[str], None]]] = {}

    @property
    def now(self) -> float:
        return _EPOCH_S + self.loop.time()

    def flush(self) -> None:
        """All keys are gone."""
        self._pools.clear()

    def content(self) -> dict[str, Content]:
        """A copy, for `restore`: what a replica of the store had when it was last in touch."""
        return {key: content.copy() for key, content in self._pools.items()}

    def restore(self, content: dict[str, Content]) -> None:
        self._pools = content

    def subscribe(self, channel: str, heard: Callable[[str], None]) -> None:
        self._listeners.setdefault(channel, []).append(heard)

    def unsubscribe(self, channel: str, heard: Callable[[str], None]) -> None:
        self._listeners[channel].remove(heard)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> object:
        """What the script of this name does and returns; the first argument is the time, empty for the store's own."""
        facts = keys[1] if script.name == "ask" else keys[0]
        content = self._pools.setdefault(facts, Content())
        return self._ask(content, arguments) if script.name == "ask" else self._publish(content, arguments)

    def _ask(self, content: Content, arguments: Sequence[Argument]) -> tuple[bytes, bytes]:
        given, replica, packed, channel, counters, known, policy = arguments
        assert isinstance(replica, str)
        assert isinstance(packed, bytes)
        assert isinstance(channel, str)
        now = float(given or self.now)
        lead_s = content.lead[2] - now if content.lead != _NOBODY else -1.0
        settled = content.account.ask(now, _report(replica, packed, str(policy)))
        state = content.state if content.fingerprint != known else b""
        if settled is None:
            return _pack((0, 0, 0.0, 0.0, -1, 0, lead_s, now, content.fingerprint, 0)), state
        if counters:
            content.counters[replica] = (now, str(counters))
        if settled.wake is not None:
            self._say(channel, settled.wake)
        again_s = -1 if settled.again_s is None else settled.again_s
        total = settled.total
        answer = (1, settled.admitted, total.tokens, total.slots, again_s, settled.replicas, lead_s, now)
        return _pack((*answer, content.fingerprint, settled.differing)), state

    def _publish(self, content: Content, arguments: Sequence[Argument]) -> tuple[bytes, bytes]:
        given, owner, token, lasts_s, state, fingerprint, channel, changed = arguments
        assert isinstance(state, bytes)
        now, found = float(given or self.now), b""
        held_by, held_token, until = content.lead
        if (held_by, held_token) != (owner, token):
            if until > now:
                return _pack((0, 0, until - now, now)), b""
            found, token = content.state, max(held_token + 1, int(now * 1_000_000))
        content.lead = str(owner), int(token), now + float(lasts_s)
        if state:
            content.state, content.fingerprint = state, str(fingerprint)
            content.account.state = read_state(state, at=now)
        if changed:
            self._say(str(channel), "*")
        flat = [part for name, (at, text) in content.counters.items() for part in (name, at, text)]
        return _pack((1, int(token), float(lasts_s), now, *flat)), found

    def _say(self, channel: str, message: str) -> None:
        for heard in self._listeners.get(channel, ()):
            self.loop.call_later(self.round_trip_s / 2, heard, message)


def _report(replica: str, packed: bytes, policy: str) -> Report:
    """The inverse of `scripts.pack_report`."""
    flat = _unpack(packed)
    ghosts, p0, p1, p2 = (Load(flat[i], flat[i + 1]) for i in range(5, _WANTS_FROM, 2))
    wants = [
        Want(Priority(int(flat[i])), Load(flat[i + 1], flat[i + 2]), flat[i + 3])
        for i in range(_WANTS_FROM, len(flat), 4)
    ]
    return Report(
        replica=replica,
        seq=int(flat[0]),
        acked=int(flat[1]),
        alone=flat[2] == 2,
        returning=flat[2] == 1,
        policy=policy,
        hold=Hold(flat[3], flat[4]),
        ghosts=ghosts,
        in_use=(p0, p1, p2),
        wants=wants,
    )


class VirtualLine:
    """Implements `state.link.Line`: one process's connection. `dead`: the process is gone."""

    def __init__(self, store: VirtualStore) -> None:
        self.dead = False
        self._store = store

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, within_s: float, heard: Heard
    ) -> Callable[[], None]:
        store = self._store
        if self._down:
            return store.loop.call_soon(heard, _refused()).cancel
        if store.round_trip_s > within_s:
            return store.loop.call_later(within_s, heard, StateUnavailable("timeout", "no answer in time")).cancel

        half_s = store.round_trip_s / 2
        timers: list[asyncio.TimerHandle] = []

        def arrive() -> None:
            said: object = _refused() if self._down else store.run(script, keys, arguments)
            timers.append(store.loop.call_later(half_s, answer, said))

        def answer(said: object) -> None:
            heard(_refused() if self._down else said)

        timers.append(store.loop.call_later(half_s, arrive))
        return lambda: timers[-1].cancel()

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """A message that is said while the line is down is lost; the line does not notice."""

        def pass_on(message: str) -> None:
            if not self._store.lost and not self.dead:
                heard(message)

        self._store.subscribe(channel, pass_on)
        try:
            await self._store.loop.create_future()
        finally:
            self._store.unsubscribe(channel, pass_on)

    @property
    def _down(self) -> bool:
        return self._store.lost or self.dead


def _refused() -> StateUnavailable:
    return StateUnavailable("connection", "connection refused")


class Uncounted:
    """Implements `state.watch.Watch`."""

    def state_called(self, result: str) -> None: ...

    def state_answered(self, took_s: float) -> None: ...


class Shares:
    """Implements `pools.Store`: one process's part of every pool."""

    def __init__(self, process: str, line: VirtualLine, clock: Clock) -> None:
        self._process = process
        self._line = line
        self._clock = clock

    def pool(self, name: str, initial: PoolState) -> SharedPool:
        return SharedPool(
            name,
            self._process,
            link=self._line,
            prefix="sim",
            initial=initial,
            clock=self._clock,
            watch=Uncounted(),
            may_lead=True,
            asks=True,
        )

    def quota(self, replicas: Callable[[], int]) -> SharedQuota:
        return SharedQuota(
            self._process, link=self._line, prefix="sim", clock=self._clock, watch=Uncounted(), replicas=replicas
        )
