"""What one principal has of an instance is counted, and no other's with it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.errors import TooManyStreams, TooManyTurns, TurnsTooFast
from legato.journal import SessionKey
from legato.quota import MINUTE_MS, PACES, Pace, Quota
from legato.settings import Settings

ANN, BOB = SessionKey("ann", "s1"), SessionKey("bob", "s1")


def key(n: int) -> SessionKey:
    return SessionKey("ann", f"s{n}")


def quota(turns: int = 0, streams: int = 0, minute: int = 0, now: int = 0) -> Quota:
    return Quota(Settings(turns_active=turns, streams_open=streams, turns_per_minute=minute), lambda: now)


def test_turns_that_run_count_for_their_principal_and_not_for_their_own_session() -> None:
    book = quota(turns=2)
    live = [key(1), key(2), BOB]
    assert isinstance(book.refusal(key(3), "t", live), TooManyTurns)
    assert book.refusal(key(2), "t", live) is None
    assert book.refusal(SessionKey("bob", "s3"), "t", live) is None
    assert book.refusal(key(3), "t", live[1:]) is None


def test_a_turn_that_is_starting_counts_once_however_often_it_is_sent() -> None:
    book = quota(turns=1, minute=1)
    with book.starting(key(1), "t"), book.starting(key(1), "t"):
        assert book.refusal(key(1), "t", []) is None
        assert isinstance(book.refusal(key(2), "t", []), TooManyTurns)
        assert isinstance(book.refusal(key(1), "other", []), TurnsTooFast)
    assert book.refusal(key(2), "t", []) is None


def test_without_limits_nothing_is_refused() -> None:
    book = quota()
    for n in range(1000):
        assert book.refusal(key(n), "t", [key(m) for m in range(n)]) is None
        book.began("ann")


def test_turns_begin_at_once_up_to_a_minutes_worth_and_then_at_its_pace() -> None:
    pace = Pace(6)
    for _ in range(6):
        assert pace.wait("ann", 0, 1) == 0
        pace.count("ann", 0)
    assert pace.wait("ann", 0, 1) == 10
    assert pace.wait("ann", 9_000, 1) == 1
    assert pace.wait("ann", 10_000, 1) == 0
    assert pace.wait("bob", 0, 1) == 0


def test_a_clock_that_is_set_back_keeps_nobody_waiting_for_longer_than_a_step() -> None:
    pace = Pace(6)
    pace.count("ann", 10**12)
    assert pace.wait("ann", 0, 1) == 10


@given(st.lists(st.integers(0, 30_000), max_size=200), st.integers(1, 20))
def test_no_minute_has_more_than_twice_what_it_may_have(gaps: list[int], most: int) -> None:
    pace, now, begun = Pace(most), 0, []
    for gap in gaps:
        now += gap
        if not pace.wait("ann", now, 1):
            pace.count("ann", now)
            begun.append(now)
    assert all(sum(at <= other < at + MINUTE_MS for other in begun) <= 2 * most for at in begun)


def test_the_books_are_bounded_and_hold_nobody_who_has_rested_for_a_minute() -> None:
    pace = Pace(1)
    for n in range(PACES + 100):
        pace.count(f"u{n}", 0)
    assert len(pace) == PACES
    pace.count("ann", MINUTE_MS)
    assert len(pace) == 1


def test_streams_are_counted_until_they_end_in_whatever_thread() -> None:
    book = quota(streams=2)
    one, two = book.stream("ann"), book.stream("ann")
    with one:
        two.__enter__()
        with pytest.raises(TooManyStreams), book.stream("ann"):
            pass
        with book.stream("bob"):
            pass
        thread = threading.Thread(target=two.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        with book.stream("ann"):
            pass
    with book.stream("ann"), book.stream("ann"):
        pass
