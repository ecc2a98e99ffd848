"""What Envoy's mode cannot carry is said once, and taken back when it is mended."""

from __future__ import annotations

from extproc.ports import WireEvent
from extproc.wire.events import Protocol
from extproc.wire.modes import ENDS_EARLY, IGNORES_OVERRIDE, NO_BODIES, Modes
from tests.support.observing import Remembering


def test_a_plain_protocol_is_no_warning() -> None:
    modes = Modes(Remembering())
    modes.saw_protocol(Protocol())
    assert not modes.warnings


def test_a_mode_that_ignores_our_override_is_warned_of_once() -> None:
    observer = Remembering()
    modes = Modes(observer)
    for _ in range(3):
        modes.saw_protocol(Protocol(request_duplex=True))
    assert modes.warnings == (IGNORES_OVERRIDE,)
    assert observer.events[WireEvent.MODE_LACKS_TRAILERS] == 1


def test_event_streams_that_all_end_at_once_show_a_mode_without_trailers() -> None:
    observer = Remembering()
    modes = Modes(observer)
    for _ in range(19):
        modes.event_stream_ended(0.001)
        modes.event_stream_ended(0.3)  # proves nothing
    assert not modes.warnings
    modes.event_stream_ended(0.001)
    assert modes.warnings == (ENDS_EARLY,)
    assert observer.events[WireEvent.MODE_LACKS_TRAILERS] == 1


def test_one_stream_that_lasts_shows_that_the_mode_is_right() -> None:
    modes = Modes(Remembering())
    for _ in range(20):
        modes.event_stream_ended(0.001)
    modes.event_stream_ended(2.0)
    assert not modes.warnings


def test_bodies_that_do_not_come_are_not_asked_for_for_a_minute() -> None:
    observer = Remembering()
    modes = Modes(observer)
    assert modes.bodies_come(0.0)
    modes.missed_body(100.0)
    assert not modes.bodies_come(159.0)
    assert modes.bodies_come(161.0)
    assert modes.warnings == (NO_BODIES,)
    assert observer.events[WireEvent.MODE_LACKS_BODY] == 1
    modes.saw_body()
    assert not modes.warnings
