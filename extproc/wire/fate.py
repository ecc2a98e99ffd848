"""What may have become of a request whose stream has ended: over with it, or running on without us."""

from __future__ import annotations

import structlog

from extproc.ports import WireEvent
from extproc.wire.owed import SHARE, Owed
from extproc.wire.session import Phase
from extproc.wire.shared import Shared

_log = structlog.get_logger(__name__)

_EXPECTING = (Phase.NEW, Phase.BODY_ASKED, Phase.ADMITTED)
"""Envoy's next message may be on its way."""
_UNANSWERED = (Phase.DECIDING, Phase.BODY_ASKED, Phase.ADMITTED)
"""The client has seen no response."""


def may_run_on(
    shared: Shared, peer: str, *, phase: Phase, owed: Owed, timeout_s: float, sampled: bool, broken: bool
) -> bool:
    """Whether the request may be running upstream although its stream has ended. Counts what it finds.

    `timeout_s`: Envoy's for a message. `sampled`: its chunks come to us; `broken`: we ended the stream ourselves.
    """
    now, deaths = shared.clock.now(), shared.connections.deaths
    lost = shared.connections.lost(peer, now)
    if shared.connections.deaths > deaths:
        shared.observer.wire(WireEvent.CONNECTION_LOST)
        _log.warning("connection_lost", peer=peer)
    # Envoy may have sent a message that we were not running to read, and have stopped waiting for the reply.
    expecting = sampled or phase in _EXPECTING
    away = expecting and now - shared.pulse.dates_from(now) >= SHARE * timeout_s
    late = not lost and (away or owed.may_have_passed(now))
    if late:
        shared.observer.wire(WireEvent.LATE_RESET)
    runs_on = lost or late or broken or shared.stopping
    if not runs_on and phase in _UNANSWERED:
        shared.observer.wire(WireEvent.CLIENT_GONE)
    return runs_on
