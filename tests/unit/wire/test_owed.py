"""When a stream that ends may belong to a request that Envoy let pass. Times in seconds, message_timeout 0.25."""

from __future__ import annotations

from extproc.wire.owed import Owed

TIMEOUT = 0.25


def test_nothing_owed_nothing_passed() -> None:
    assert not Owed().may_have_passed(1e9)


def test_a_reply_owed_for_a_short_time() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    assert not owed.may_have_passed(10.19)
    assert owed.may_have_passed(10.21)


def test_a_reply_in_time_leaves_no_doubt() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.pay(10.1, TIMEOUT)
    assert not owed.may_have_passed(10.11)
    assert not owed.may_have_passed(99.0)


def test_a_late_reply_leaves_doubt_for_a_moment() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.pay(10.3, TIMEOUT)
    assert owed.may_have_passed(10.31)
    assert not owed.may_have_passed(10.6)


def test_a_client_that_leaves_late_in_its_wait_has_not_passed() -> None:
    """0.8 of an override of 16 s is 12.8 s: a patient client's leaving at 14 s must not become ghost load."""
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.extend(10.01, 16.0, TIMEOUT)
    assert not owed.may_have_passed(24.0)
    assert owed.may_have_passed(25.95)


def test_an_override_that_was_sent_late_may_not_have_been_heard() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.extend(10.3, 16.0, TIMEOUT)
    assert owed.may_have_passed(10.32)
    assert not owed.may_have_passed(10.6)


def test_a_verdict_right_after_a_late_override_is_still_in_doubt() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.extend(10.3, 16.0, TIMEOUT)
    owed.pay(10.31, TIMEOUT)
    assert owed.may_have_passed(10.32)


def test_the_next_message_is_counted_anew() -> None:
    owed = Owed()
    owed.start(10.0, TIMEOUT)
    owed.pay(10.01, TIMEOUT)
    owed.start(20.0, TIMEOUT)
    assert not owed.may_have_passed(20.1)
    assert owed.may_have_passed(20.2)
