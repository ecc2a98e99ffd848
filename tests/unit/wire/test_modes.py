"""What Envoy's mode cannot carry is said once, and taken back when it is mended."""

from __future__ import annotations

from extproc.ports import WireEvent
from extproc.wire.events import Protocol
from extproc.wire.modes import ENDS_EARLY, IGNORES_OVERRIDE, NO_BODIES, WAITS_ARE_CUT, Modes
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


def test_until_the_first_body_comes_one_request_at_a_time_is_asked_for_its_own() -> None:
    """All that ask at once would go on undecided together, where Envoy does not send them."""
    modes = Modes(Remembering())
    assert [modes.may_ask_body(0.0), modes.may_ask_body(0.1), modes.may_ask_body(4.9)] == [True, False, False]
    assert modes.may_ask_body(5.0)
    modes.saw_body()
    assert all(modes.may_ask_body(5.1) for _ in range(3))


def test_waits_that_envoy_ends_are_told_from_clients_that_leave() -> None:
    observer = Remembering()
    modes = Modes(observer)
    for left_after_s in (0.1, 1.0, 1.7, 2.6, 2.9):
        assert not modes.waited(left_after_s, 2.0, cut=True)
    assert [modes.waited(2.01, 2.0, cut=True) for _ in range(4)] == [False, False, True, True]
    assert modes.warnings == (WAITS_ARE_CUT,)
    assert observer.events[WireEvent.OVERRIDE_IGNORED] == 1


def test_one_long_wait_shows_that_the_override_is_honoured() -> None:
    modes = Modes(Remembering())
    for _ in range(3):
        modes.waited(2.0, 2.0, cut=True)
    modes.waited(3.1, 2.0, cut=False)
    assert not modes.warnings
    assert not modes.waited(2.0, 2.0, cut=True)
