"""What the spine asks of the edges, as Protocols and the values that cross them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from extproc.fleet import Fleet
from extproc.model import NOTHING, Demand, End, Finished, Hold, Latency, Load, Outcome, PoolState, Priority, Tenant


class Want(Struct, frozen=True, gc=False):
    """One waiter that a replica asks capacity for. `waited_s`: how long it has waited already."""

    priority: Priority
    load: Load
    waited_s: float = 0.0


class Ask(Struct, frozen=True):
    """A replica's call to the ledger: absolute load in use, what waits, and the wants in order (most important first).

    `ghosts`: load newly turned into ghost load since the last ask.
    `hold`: how long load is held here, which tells how fast ghost load goes; None while unknown.
    """

    in_use: tuple[Load, Load, Load]
    wants: Sequence[Want] = ()
    ghosts: Load = NOTHING
    hold: Hold | None = None


class Verdicts(Struct, frozen=True):
    """The ledger's answer. `admitted`: how many of the wants, from the front, may go; the first refused stops the line.

    `total`: the pool's load in use over all replicas, ghost load included, after admission.
    `ask_again_s`: when capacity may free without any event here (ghost load decaying, other replicas); None: only on a wake.
    """

    admitted: int
    state: PoolState
    total: Load
    ask_again_s: float | None = None


class Ledger(Protocol):
    """The account of one pool's capacity. An implementation answers every ask exactly once, at once or later, in order."""

    def ask(self, ask: Ask, reply: Callable[[Verdicts], None]) -> None:
        """Never raises for trouble behind it: an implementation cut off from its store answers by its local mode."""

    def at_once(self, ask: Ask) -> Verdicts | None:
        """The same answer where it takes nobody else, or None: nothing has been asked, and `ask` is the way. Not while an
        ask has no answer yet."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        """`wake` is called when a waiter's fate may have changed: a new pool state, or capacity freed elsewhere."""

    @property
    def state(self) -> PoolState:
        """The pool state in force, as last heard."""

    @property
    def total(self) -> Load:
        """The pool's load in use over all replicas, ghost load included, as last heard."""

    @property
    def replicas(self) -> int:
        """Replicas that share the pool, this one included, as last heard."""


class Quota(Protocol):
    """What tenants that have a quota use of it. An implementation answers at once, from what it knows: what is behind it
    hears of it afterwards."""

    def wait_s(self, tenant: Tenant, tokens: float) -> float:
        """Seconds until a request of so many tokens fits; 0: it fits now. Reserves nothing."""

    def reserve(self, tenant: Tenant, tokens: float) -> Callable[[], None]:
        """One request of so many tokens, whether it fits or not. The answer gives it back, and is called once at most."""

    def left(self, tenant: Tenant) -> tuple[float, float]:
        """Tokens and requests that it may still use now, as far as is known here; inf where they are not limited."""


class Publisher(Protocol):
    """Where a control loop puts its decision."""

    def publish(self, state: PoolState) -> None: ...


class FleetSource(Protocol):
    """Where a control loop sees the engines. `changed` is called on every new sample."""

    def fleet(self) -> Fleet: ...

    def on_sample(self, changed: Callable[[], None]) -> None: ...


class DemandSource(Protocol):
    """Where a control loop sees a pool's traffic."""

    def demand(self, now: float) -> Demand:
        """May be asked at any rate and by anybody: it changes nothing, and leaves `latencies` empty."""

    def take_latencies(self) -> tuple[Latency, ...]:
        """Of what has finished since this was last called, in order. For the control loop alone."""


class TrafficSource(DemandSource, Protocol):
    """Where a replica's part of a pool's traffic comes from, for whoever leads the pool."""

    @property
    def finished(self) -> Finished:
        """Of this replica's requests, since its start."""


class WireEvent(StrEnum):
    """Things on the wire worth counting; each a label of one metric."""

    UNEXPECTED_MESSAGE = "unexpected-message"
    """A message that the stream's state did not call for; answered all the same."""
    MODE_LACKS_TRAILERS = "mode-lacks-trailers"
    """Envoy's `protocol_config` shows a mode in which the stream ends before the response does, or its streams do end so."""
    MODE_LACKS_BODY = "mode-lacks-body"
    """Envoy did not send a body that we asked for: `allow_mode_override` is off. Costs come from lengths."""
    OVERRIDE_IGNORED = "override-ignored"
    """Envoy ended waits at its message_timeout although we asked for more time: `max_message_timeout` is missing."""
    LATE_RESET = "late-reset"
    """A stream ended while we owed a reply for so long that Envoy may have let the request pass."""
    CONNECTION_LOST = "connection-lost"
    """A connection of Envoy's ended under open streams: their requests may go on upstream without us."""
    CLIENT_GONE = "client-gone"
    BODY_UNREADABLE = "body-unreadable"
    HANDLER_ERROR = "handler-error"


class Observer(Protocol):
    """Where counts go. Called from the spine and the edges; must be cheap and never raise."""

    def decided(self, outcome: Outcome, priority: Priority | None, pool: str, *, waited_s: float) -> None: ...

    def retried(self, priority: Priority, pool: str) -> None:
        """A request arrived that says it is a retry."""

    def ended(self, end: End, priority: Priority, pool: str, *, held_s: float) -> None: ...

    def wire(self, event: WireEvent) -> None: ...

    def scraped(self, engine: str, result: str, *, took_s: float) -> None: ...
