"""What a client does next, decided without a clock, chance or network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato.client.policy import AT_ONCE, Link, Outcome, Plan, Timing
from legato.turn import ENDED, Status

TIMING = Timing()
BROKE, SILENT = Outcome("broke", "streaming"), Outcome("silent", "streaming")


def follow(*outcomes: Outcome, now: float = 0.0, chance: float = 1.0) -> tuple[Link, list[Plan]]:
    link, plans = Link(contact=0.0), []
    for outcome in outcomes:
        link, plan = link.after(outcome, TIMING, now, chance)
        plans.append(plan)
    return link, plans


def test_pauses_double_from_one_second_to_thirty() -> None:
    _, plans = follow(*[BROKE] * 8)
    assert [plan.delay for plan in plans] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert {(plan.do, plan.status) for plan in plans} == {("connect", "reconnecting")}


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_a_pause_is_jittered_over_its_whole_window(chance: float) -> None:
    _, plans = follow(*[BROKE] * 3, chance=chance)
    assert [plan.delay for plan in plans] == [chance, 2 * chance, 4 * chance]


def test_the_first_event_resets_the_pauses_and_a_mere_connection_does_not() -> None:
    _, plans = follow(BROKE, BROKE, replace(BROKE, lived=60.0), replace(BROKE, moved=True), BROKE)
    assert [plan.delay for plan in plans] == [1, 2, 4, 1, 2]


@pytest.mark.parametrize("reason", sorted(AT_ONCE))
def test_an_orderly_close_is_followed_at_once_but_not_again_without_news(reason: str) -> None:
    closed = Outcome("closed", "streaming", moved=True, reason=reason)
    _, plans = follow(closed, closed, replace(closed, moved=False))
    assert [plan.delay for plan in plans] == [0, 0, 2]
    assert all(plan.fresh_token == (reason == "auth") for plan in plans)


@pytest.mark.parametrize("status", [None, "streaming", "waiting"])
def test_a_gap_is_resumed_at_once_and_shown_as_no_break_but_not_twice_without_news(status: Status | None) -> None:
    gap = Outcome("gap", status)
    _, plans = follow(gap, replace(gap, moved=True), replace(gap, turn="streaming"))
    assert plans[:2] == [Plan("connect", status or "streaming")] * 2
    assert (plans[2].status, plans[2].delay) == ("reconnecting", 2)


@pytest.mark.parametrize("reason", ["slow", "lease", "a later reason"])
def test_any_other_close_is_followed_after_a_pause(reason: str) -> None:
    _, [plan] = follow(Outcome("closed", "streaming", moved=True, reason=reason))
    assert (plan.do, plan.delay) == ("connect", 1)


@pytest.mark.parametrize("kind", ["closed", "refused"])
def test_a_pause_that_the_server_asks_for_is_the_least(kind: str) -> None:
    asked = Outcome("refused", code=503, pause=7) if kind == "refused" else Outcome("closed", reason="slow", pause=7)
    _, plans = follow(*[asked] * 5)
    assert [plan.delay for plan in plans] == [7, 7, 7, 8, 16]


def test_a_draining_close_waits_as_long_as_it_says() -> None:
    _, [plan] = follow(Outcome("closed", "streaming", moved=True, reason="draining", pause=0.5))
    assert plan.delay == 0.5


def test_a_turn_out_of_reach_is_reconnecting_and_after_five_minutes_interrupted_with_a_way_to_resume() -> None:
    link = Link(contact=0.0)
    assert link.after(BROKE, TIMING, 299.9, 0)[1].status == "reconnecting"
    assert link.after(BROKE, TIMING, 300, 0)[1] == Plan("stop", "interrupted", action="resume")


@pytest.mark.parametrize("contact", [replace(BROKE, moved=True), replace(BROKE, lived=9.0)])
def test_contact_starts_the_five_minutes_anew(contact: Outcome) -> None:
    link, _ = Link(contact=0.0).after(contact, TIMING, 299, 0)
    assert link.after(BROKE, TIMING, 598, 0)[1].do == "connect"
    assert link.after(BROKE, TIMING, 599, 0)[1].do == "stop"


@pytest.mark.parametrize("useless", [BROKE, SILENT, replace(BROKE, lived=0.1), Outcome("refused", code=503)])
def test_an_attempt_that_brings_nothing_is_no_contact(useless: Outcome) -> None:
    link, _ = Link(contact=0.0).after(useless, TIMING, 200, 0)
    assert link.after(BROKE, TIMING, 300, 0)[1].do == "stop"


@pytest.mark.parametrize("kind", ["read", "broke", "closed", "gap", "silent", "over"])
@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_ended_turn_stops_the_client_however_its_stream_ended(kind: str, status: Status) -> None:
    _, [plan] = follow(replace(BROKE, kind=kind, turn=status))  # type: ignore[arg-type]
    assert plan == Plan("stop", status)


@pytest.mark.parametrize("kind", ["closed", "read"])
def test_a_waiting_turn_is_looked_at_every_thirty_seconds(kind: str) -> None:
    waiting = Outcome(kind, "waiting", reason="suspended")  # type: ignore[arg-type]
    _, plans = follow(*[waiting] * 3)
    assert plans == [Plan("look", "waiting", 30)] * 3


def test_a_turn_decided_on_here_is_reached_for_at_once_and_a_few_times_more() -> None:
    waiting = Outcome("closed", "waiting", reason="suspended")
    link, plan = follow(waiting)[0].hurry()
    assert plan == Plan("connect", "waiting")
    plans = []
    for _ in range(4):
        link, plan = link.after(waiting, TIMING, 0, 1.0)
        plans.append((plan.do, plan.status, plan.delay))
    assert plans == [*[("connect", "waiting", delay) for delay in (1, 2, 4)], ("look", "waiting", 30)]


def test_a_turn_that_went_on_and_waits_again_waits_as_any_other() -> None:
    waiting = Outcome("closed", "waiting", reason="suspended")
    link, _ = Link(contact=0.0).hurry()
    assert link.after(replace(waiting, moved=True), TIMING, 0, 1.0)[1] == Plan("look", "waiting", 30)


def test_a_turn_found_streaming_by_a_look_is_connected_to() -> None:
    _, plans = follow(Outcome("closed", "waiting", reason="suspended"), Outcome("read", "streaming", moved=True))
    assert plans[-1] == Plan("connect", "streaming")


def test_a_refused_token_is_refreshed_once_then_the_turn_is_left_to_be_resumed() -> None:
    _, plans = follow(*[Outcome("refused", code=401)] * 2)
    assert plans == [
        Plan("connect", "reconnecting", fresh_token=True),
        Plan("stop", "interrupted", action="resume"),
    ]


def test_a_token_that_served_may_be_refreshed_again() -> None:
    refused = Outcome("refused", code=401)
    _, plans = follow(refused, replace(BROKE, moved=True), refused)
    assert plans[-1].fresh_token


@pytest.mark.parametrize("code", [404, 410])
def test_a_turn_that_is_gone_is_interrupted_with_a_way_to_send_it_again(code: int) -> None:
    _, plans = follow(Outcome("refused", code=code))
    assert plans == [Plan("stop", "interrupted", action="retry")]


@pytest.mark.parametrize("code", [302, 307, 408, 425, 429, 500, 502, 503, 504])
def test_a_passing_refusal_is_tried_again(code: int) -> None:
    _, [plan] = follow(Outcome("refused", code=code))
    assert (plan.do, plan.delay) == ("connect", 1)


@pytest.mark.parametrize("code", [400, 403, 405, 406, 409, 413, 415, 422])
def test_any_other_refusal_is_final(code: int) -> None:
    assert follow(Outcome("refused", code=code))[1] == [Plan("refuse", "failed")]


def test_two_silent_answers_lead_to_the_long_poll_for_good() -> None:
    link, _ = follow(SILENT)
    assert not link.polls
    link, _ = follow(SILENT, BROKE, SILENT, replace(BROKE, moved=True, lived=9.0))
    assert link.polls


def test_a_byte_between_two_silences_keeps_the_stream() -> None:
    link, _ = follow(SILENT, replace(BROKE, lived=1.0), SILENT)
    assert not link.polls


def test_an_answer_that_brought_its_opening_and_then_nothing_is_a_silent_one() -> None:
    """A hop that passes on in pieces lets the opening through, and holds what comes after."""
    opening = replace(SILENT, lived=0.1)
    assert follow(opening, opening)[0].polls
    assert not follow(opening, replace(opening, moved=True))[0].polls
    assert not follow(opening, replace(SILENT, lived=9.0), opening)[0].polls


def test_long_polls_follow_one_another_at_once_unless_one_came_back_at_once_with_nothing() -> None:
    read = Outcome("read", "streaming")
    _, plans = follow(replace(read, moved=True), replace(read, lived=20.0), read, read)
    assert [plan.delay for plan in plans] == [0, 0, 1, 2]


def test_an_end_that_the_state_does_not_know_costs_one_look() -> None:
    over, looked = Outcome("over", "streaming"), Outcome("read", "streaming")
    assert follow(over, replace(looked, turn="completed"))[1] == [
        Plan("look", "reconnecting"),
        Plan("stop", "completed"),
    ]
    assert follow(over, replace(looked, moved=True), over)[1][-1] == Plan("stop", "interrupted", action="retry")


def test_looking_at_a_turn_that_waits_is_contact() -> None:
    link, _ = Link(contact=0.0).after(Outcome("read", "waiting"), TIMING, 1000, 0)
    assert link.after(BROKE, TIMING, 1001, 0)[1].do == "connect"
