"""Who runs a pool's controllers: one process at a time, that says so in the same step in which it writes their state.

The lead lasts `LEAD_S` and is renewed at half of it; whoever would lead tries when it has run out. A process leads only as
long as it knows so by its own clock, counted from before its call: one that slept through its lead's end does not write,
and the script would refuse its token.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from extproc.clock import Clock
from extproc.errors import StateUnavailable
from extproc.model import Demand, Finished, Latency, PoolState
from extproc.state.demand import HEARD_FOR_S, Told, read_told
from extproc.state.link import Line, run
from extproc.state.scripts import Keys, Reign, Script, pack_state, read_reign, read_state

LEAD_S = 0.7
RENEW_S = 0.35
PUBLISH_EVERY_S = 0.05
"""A state that keeps changing is written this often at most."""
HANDOVER_S = 1.0
"""So long may a new leader need to hear of as many engines as the last one did."""
_CALL_WITHIN_S = 0.3
_RETRY_S = 0.1
_LATE_S = 0.01
"""A lead is tried for this long after it has run out: the clocks that count it differ a little."""
_LATENCIES_KEPT = 1024
"""Between two steps of a control loop far fewer are told."""
_PUBLISH = Script("publish")
_log = structlog.get_logger(__name__)


class Lead:
    """One process's part in leading one pool. `on_change` is called when it takes the lead or has lost it."""

    def __init__(
        self, pool: str, owner: str, *, link: Line, keys: Keys, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._owner = owner
        self._link = link
        self._keys = keys
        self._clock = clock
        self._on_change = on_change
        self._token = 0
        self._until = -math.inf
        self._led = False
        self._try_at = clock.now()
        self._state: tuple[bytes, str] = (b"", "")
        self._sent = ""
        self._sent_at = -math.inf
        self._due = asyncio.Event()
        self._counters: Sequence[Demand] = ()
        self._finished: dict[str, Finished] = {}
        self._latencies: deque[Latency] = deque(maxlen=_LATENCIES_KEPT)
        self._found: PoolState | None = None
        self._taken_at = -math.inf

    @property
    def leading(self) -> bool:
        return self._clock.now() < self._until

    def publish(self, state: PoolState) -> None:
        """Puts a state in force for all replicas, soon, if this process leads.

        Who has just taken the lead has not heard of all engines yet. What was in force knows better for a moment.
        """
        if self.leading and not self._knows_less(state):
            self._state = pack_state(state)
            if self._state[1] != self._sent:
                self._due.set()

    def heard(self, lead_s: float) -> None:
        """From an ask: what is left of the lead, whosever it is."""
        if not self.leading:
            self._try_at = self._clock.now() + max(0.0, lead_s) + _LATE_S
            if lead_s <= 0:
                self._due.set()
        elif lead_s <= 0:  # it is gone from the store, which lost everything
            self._sent, self._sent_at = "", -math.inf
            self._due.set()

    @property
    def counters(self) -> Sequence[Demand]:
        """Of all replicas, as they last told."""
        return self._counters

    def take_latencies(self) -> tuple[Latency, ...]:
        """One for each report of a replica in which something had finished since its last: the means."""
        taken = tuple(self._latencies)
        self._latencies.clear()
        return taken

    async def run(self) -> None:
        """Until cancelled; takes the lead when it is free, keeps it as long as it can."""
        while True:
            await self._until_due()
            await self._call()
            self._tell()

    async def give_up(self) -> None:
        """Lets the lead run out at once, so that another takes it without waiting."""
        if self.leading:
            with_none = ("", self._owner, self._token, 0, b"", "", self._keys.channel, 0)
            keys = (self._keys.facts, self._keys.demand)
            with suppress(StateUnavailable, TimeoutError):  # then it runs out by itself
                async with asyncio.timeout(_CALL_WITHIN_S):  # a cluster's nodes may have to be found first
                    await run(self._link, _PUBLISH, keys, with_none, within_s=_CALL_WITHIN_S)
        self._until = -math.inf

    def _knows_less(self, state: PoolState) -> bool:
        settling = self._clock.now() - self._taken_at < HANDOVER_S
        return settling and self._found is not None and state.engines_reporting < self._found.engines_reporting

    async def _until_due(self) -> None:
        while self._clock.now() < (at := self._next_at()):
            self._due.clear()
            timer = self._clock.call_at(at, self._due.set)
            try:
                await self._due.wait()
            finally:
                timer.cancel()

    def _next_at(self) -> float:
        if not self.leading:
            return self._try_at
        return self._sent_at + (PUBLISH_EVERY_S if self._state[1] != self._sent else RENEW_S)

    async def _call(self) -> None:
        start = self._clock.now()
        packed, fingerprint = self._state if self._led else (b"", "")
        changed = bool(packed) and fingerprint != self._sent
        arguments = ("", self._owner, self._token, LEAD_S, packed, fingerprint, self._keys.channel, int(changed))
        self._sent_at = start
        try:
            raw = await run(
                self._link, _PUBLISH, (self._keys.facts, self._keys.demand), arguments, within_s=_CALL_WITHIN_S
            )
            reign = read_reign(raw)
            found = read_state(reign.found, at=start) if reign.found else None
        except (StateUnavailable, msgspec.DecodeError, ValueError, TypeError) as error:
            _log.debug("lead_call_failed", pool=self._pool, error=str(error))
            self._try_at = self._clock.now() + _RETRY_S
            return
        if reign.led:
            if reign.token != self._token:
                self._taken_at = start
                self._found = found
                self._finished = {}
                self._latencies.clear()
            self._token = reign.token
            self._until = start + reign.lead_s
            self._sent = fingerprint
            self._hear(_told(reign))
        else:
            self._until = -math.inf
            self._try_at = self._clock.now() + max(0.0, reign.lead_s) + _LATE_S

    def _hear(self, told: Mapping[str, tuple[float, Told]]) -> None:
        """What had finished before this process led was another's to step on."""
        self._counters = [one.demand for age_s, one in told.values() if age_s <= HEARD_FOR_S]
        for replica, (_, one) in told.items():
            if mean := one.finished.mean_since(self._finished.get(replica, one.finished)):
                self._latencies.append(mean)
        self._finished = {replica: one.finished for replica, (_, one) in told.items()}

    def _tell(self) -> None:
        if self.leading != self._led:
            self._led = self.leading
            _log.info("lead_taken" if self._led else "lead_lost", pool=self._pool)
            if not self._led:
                self._state, self._sent = (b"", ""), ""
            self._on_change()


def _told(reign: Reign) -> Mapping[str, tuple[float, Told]]:
    """What can be read of the counters, with its age in seconds; another version's are left out."""
    found = {}
    for replica, (age_s, text) in reign.counters.items():
        with suppress(msgspec.DecodeError, ValueError):
            found[replica] = (age_s, read_told(text))
    return found
