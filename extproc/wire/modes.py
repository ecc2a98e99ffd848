"""What Envoy's mode can carry, as far as it shows: by `protocol_config`, and by how its streams behave.

The policy needs two things that Envoy's configuration may deny: streams that live as long as the response (response
trailers SEND) and bodies on request (`allow_mode_override`). Neither setting is visible from here, only its effect.
"""

from __future__ import annotations

import structlog

from extproc.ports import Observer, WireEvent
from extproc.wire.events import Protocol

_log = structlog.get_logger(__name__)

_AT_ONCE_S = 0.02
"""An event stream takes an engine longer than this; a stream that ends sooner did not wait for it."""
_LASTS_S = 1.0
"""A stream that lives as long has waited for its response. What lies between proves nothing."""
_IN_A_ROW = 20
_ASK_AGAIN_S = 60.0
"""After a body that did not come: a request of which the body does not come has gone on undecided, so not often."""
_PROBE_S = 5.0
"""While it is not known whether bodies come, one request at a time is asked for its own, so long; others are costed by
their length."""
_CUT_EARLY, _CUT_LATE_S = 0.95, 0.25
"""A wait that ends within this share of Envoy's message_timeout and this many seconds after it was ended by Envoy, maybe."""
_OUTLASTS = 1.5
_CUTS_IN_A_ROW = 3

IGNORES_OVERRIDE = (
    "Envoy's ext_proc mode ignores mode_override (full duplex, eager bodies or observability mode): requests are costed "
    "by their length, and slots are held to the end of a response only if the filter itself sets response_trailer_mode: SEND"
)
ENDS_EARLY = (
    "Envoy's streams end as soon as responses begin. Unless responses really are that short, slots free too early: "
    "set response_trailer_mode: SEND or allow_mode_override: true in the ext_proc filter"
)
NO_BODIES = (
    "Envoy does not send request bodies when asked, so costs come from lengths: "
    "set allow_mode_override: true in the ext_proc filter"
)
WAITS_ARE_CUT = (
    "Envoy ends waits at its message_timeout and lets the requests pass: set max_message_timeout in the ext_proc filter to "
    "the policy's envoy.maxMessageTimeout"
)


class Modes:
    """One per process. `warnings` is for `/readyz`; each is also logged once when it first holds."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._warnings: dict[str, None] = {}
        self._ended_at_once = 0
        self._bodies_come = False
        self._ask_again_at = float("-inf")
        self._cuts = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def waits_are_cut(self) -> bool:
        return WAITS_ARE_CUT in self._warnings

    def bodies_come(self, now: float) -> bool:
        """Whether `mode_override` is honoured, as far as is known."""
        return self._bodies_come or now >= self._ask_again_at

    def may_ask_body(self, now: float) -> bool:
        """Whether this request is to be asked for its body."""
        if not self._bodies_come:
            if now < self._ask_again_at:
                return False
            self._ask_again_at = now + _PROBE_S
        return True

    def saw_protocol(self, protocol: Protocol) -> None:
        """On each stream's first message."""
        if protocol.ignores_override:
            self._warn(IGNORES_OVERRIDE, WireEvent.MODE_LACKS_TRAILERS)

    def saw_body(self) -> None:
        self._bodies_come = True
        self._warnings.pop(NO_BODIES, None)

    def missed_body(self, now: float) -> None:
        """A body was asked for, and the response came instead."""
        self._bodies_come = False
        self._ask_again_at = now + _ASK_AGAIN_S
        self._warn(NO_BODIES, WireEvent.MODE_LACKS_BODY)

    def event_stream_ended(self, after_s: float) -> None:
        """A stream ended `after_s` after our reply to the headers of an event stream that was to follow."""
        if after_s >= _LASTS_S:
            self._ended_at_once = 0
            self._warnings.pop(ENDS_EARLY, None)
        elif after_s < _AT_ONCE_S:
            self._ended_at_once += 1
            if self._ended_at_once >= _IN_A_ROW:
                self._warn(ENDS_EARLY, WireEvent.MODE_LACKS_TRAILERS)

    def waited(self, for_s: float, timeout_s: float, *, cut: bool) -> bool:
        """A wait ended after `for_s`, by our verdict or, `cut`, with its stream. True: Envoy let the request pass, it seems.

        Clients leave at any time; Envoy, where it ignores our override, ends every wait at its message_timeout.
        """
        if for_s >= _OUTLASTS * timeout_s:
            self._cuts = 0
            self._warnings.pop(WAITS_ARE_CUT, None)
        elif cut and _CUT_EARLY * timeout_s <= for_s <= timeout_s + _CUT_LATE_S:
            self._cuts += 1
            if self._cuts >= _CUTS_IN_A_ROW:
                self._warn(WAITS_ARE_CUT, WireEvent.OVERRIDE_IGNORED)
            return self.waits_are_cut
        return False

    def _warn(self, sentence: str, event: WireEvent) -> None:
        if sentence not in self._warnings:
            self._warnings[sentence] = None
            self._observer.wire(event)
            _log.warning("envoy_mode", problem=sentence)
