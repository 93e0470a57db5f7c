"""The client against a real server on a real socket that breaks off wherever a test says."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_play import (
    FINAL,
    PAYLOADS,
    TURN,
    WAITING,
    WHOLE,
    Clockwork,
    client_of,
    closing,
    frames,
    live,
    log,
    looked,
    play,
    seqs,
    state_of,
    statuses,
)
from legato import events, sse
from legato.client import RequestRefused, Timing
from legato.errors import InputTooLarge, Invalid, NotFound, SessionBusy, TurnConflict
from legato.turn import snapshot
from scripted_server import NO_CONTENT, Answer, dropped, hanging, json_answer, problem, serving, stream


async def test_a_turn_is_sent_once_and_told_event_by_event_to_its_end() -> None:
    async with serving(stream(WHOLE)) as server:
        run, updates = await play(server)
    assert [update.event for update in updates if update.event] == [record.decode() for record in TURN]
    assert (run.state, statuses(updates)) == (FINAL, ["connecting", "streaming", "completed"])
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/sessions/s_1/turns")
    assert request.body == {"turn": "t_1", "input": "hi"}
    assert request.headers["authorization"] == "Bearer dev:ann"
    assert request.headers["idempotency-key"] == "t_1"
    assert request.headers["accept"] == "text/event-stream"


async def test_every_turn_has_an_id_of_its_own() -> None:
    async with serving(NO_CONTENT) as server, client_of(server) as client:
        first, second = client.turn("s_1", "hi").turn_id, client.turn("s_1", "hi").turn_id
    assert first != second


async def test_the_options_of_a_turn_are_sent() -> None:
    async with serving(stream(WHOLE)) as server, client_of(server) as client:
        await live(client.turn("s_1", ["hi"], turn="t_1", agent="b", if_active="interrupt", retry_of="t_0"))
    expected = {"turn": "t_1", "input": ["hi"], "agent": "b", "if_active": "interrupt", "retry_of": "t_0"}
    assert server.requests[0].body == expected


@pytest.mark.parametrize("after", range(1, len(TURN)))
@pytest.mark.parametrize("reset", [False, True], ids=["clean end", "reset"])
async def test_a_stream_that_ends_after_any_event_is_resumed_with_its_cursor(after: int, reset: bool) -> None:
    async with serving(stream(frames(TURN[:after]), reset=reset), stream(frames(TURN[after - 1 :]))) as server:
        run, updates = await play(server)
    assert run.state == FINAL
    assert seqs(updates) == list(range(1, 8))
    if not reset:
        assert server.requests[1].cursor == f"1-{after}"
        assert (server.requests[1].path, server.requests[1].query) == ("/v1/sessions/s_1/events", {"turn": "t_1"})


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1))
def test_a_stream_cut_at_any_byte_never_applies_half_a_frame_nor_its_id(at: int) -> None:
    asyncio.run(cut(at))


@pytest.mark.parametrize("at", range(len(WHOLE) - len(sse.frame(TURN[-1])) - len(sse.frame(TURN[-2])), len(WHOLE)))
async def test_a_stream_cut_at_every_byte_of_its_last_two_frames_ends_completed(at: int) -> None:
    await cut(at)


async def cut(at: int) -> None:
    """Cuts the stream after `at` bytes; what was whole by then is the cursor, and nothing is told twice."""
    whole = len(sse.Decoder().feed(WHOLE[:at]))
    async with serving(stream(WHOLE[:at]), stream(frames(TURN[whole:]))) as server:
        run, updates = await play(server)
    assert server.cursors == [None, f"1-{whole}" if whole else None]
    assert server.requests[1].method == ("GET" if whole else "POST")
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))


async def test_three_drops_in_a_row_resume_with_rising_cursors() -> None:
    parts = [frames(TURN[:2]), frames(TURN[2:3]), frames(TURN[3:5]), frames(TURN[5:])]
    async with serving(*map(stream, parts)) as server:
        run, updates = await play(server)
    assert server.cursors == [None, "1-2", "1-3", "1-5"]
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))


async def test_a_cut_after_a_ping_or_a_control_frame_loses_nothing() -> None:
    note = sse.control("auth.expiring", {"expires_at": 1})
    script = [frames(TURN[:2]) + sse.PING, frames(TURN[2:4]) + note + sse.PING, frames(TURN[4:])]
    async with serving(*map(stream, script)) as server:
        run, _ = await play(server)
    assert (server.cursors, run.state) == ([None, "1-2", "1-4"], FINAL)


async def test_a_control_frame_of_a_later_version_breaks_nothing() -> None:
    note = sse.control("later.note", {"x": 1})
    async with serving(stream(frames(TURN[:2]), note, frames(TURN[2:]))) as server:
        run, _ = await play(server)
    assert (run.state, len(server.requests)) == (FINAL, 1)


async def test_a_drop_is_shown_as_reconnecting_and_never_as_completed() -> None:
    async with serving(stream(frames(TURN[:3])), dropped, stream(frames(TURN[3:]))) as server:
        _, updates = await play(server)
    assert statuses(updates) == ["connecting", "streaming", "reconnecting", "streaming", "completed"]
    assert [update.event.type for update in updates if update.event and update.status == "completed"] == [
        "turn.completed"
    ]


@pytest.mark.parametrize("lost", [dropped, stream(), stream(sse.OPENING), stream(sse.OPENING, reset=True)])
async def test_a_post_whose_answer_never_came_is_repeated_under_the_same_id(lost: Answer) -> None:
    async with serving(lost, lost, stream(WHOLE)) as server:
        run, updates = await play(server)
    assert [(request.method, request.body["turn"]) for request in server.requests] == [("POST", "t_1")] * 3
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))


async def test_pauses_grow_while_nothing_answers_and_start_again_with_an_event() -> None:
    time = Clockwork()
    script = [dropped, dropped, dropped, stream(frames(TURN[:2])), dropped, stream(frames(TURN[2:]))]
    async with serving(*script) as server:
        await play(server, time)
    assert time.slept == [1, 2, 4, 1, 2]


@pytest.mark.parametrize("reason", ["draining", "deadline", "auth"])
async def test_an_orderly_close_is_followed_at_once(reason: str) -> None:
    time, asked = Clockwork(), list[bool]()

    async def token(fresh: bool) -> str:
        asked.append(fresh)
        return f"dev:{len(asked)}"

    async with serving(stream(frames(TURN[:2]), closing(reason), hang=True), stream(frames(TURN[2:]))) as server:
        run, _ = await play(server, time, token=token)
    assert (run.state, time.slept, server.cursors) == (FINAL, [], [None, "1-2"])
    assert asked == [False, reason == "auth"]
    assert server.requests[1].headers["authorization"] == "Bearer dev:2"


async def test_the_pause_a_close_asks_for_is_kept() -> None:
    time = Clockwork()
    first = stream(frames(TURN[:2]), closing("draining", retry_ms=1500))
    async with serving(first, stream(frames(TURN[2:]))) as server:
        await play(server, time)
    assert time.slept == [1.5]


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured(status: int) -> None:
    time = Clockwork()
    async with serving(problem(status, "draining", retry_after=7), stream(WHOLE)) as server:
        run, _ = await play(server, time)
    assert (run.state, time.slept) == (FINAL, [7])


async def test_a_stream_without_a_byte_is_broken_and_its_turn_is_resumed() -> None:
    async with serving(stream(frames(TURN[:2]), hang=True), stream(frames(TURN[2:]))) as server:
        run, _ = await play(server, timing=Timing(silence=0.2))
    assert (run.state, server.cursors) == (FINAL, [None, "1-2"])


async def test_a_stream_that_pings_is_not_broken() -> None:
    async def pinging(writer: asyncio.StreamWriter) -> None:
        await stream(frames(TURN[:2]))(writer)
        for _ in range(8):
            await asyncio.sleep(0.1)
            writer.write(sse.PING)
        writer.write(frames(TURN[2:]))

    async with serving(pinging) as server:
        run, _ = await play(server, timing=Timing(silence=0.5))
    assert (run.state, len(server.requests)) == (FINAL, 1)


async def test_a_hop_that_holds_streams_back_is_passed_by_the_long_poll() -> None:
    polls = [
        json_answer({"turn": "t_1", "status": "streaming"}, 202),
        json_answer({"events": [json.loads(record.data) for record in TURN[:3]], "cursor": "1-3", "more": True}),
        json_answer({"events": [json.loads(record.data) for record in TURN[3:]], "cursor": "1-7", "more": False}),
    ]
    async with serving(stream(hang=True), hanging, *polls) as server:
        run, updates = await play(server, timing=Timing(silence=0.2))
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))
    assert [request.headers["accept"] for request in server.requests[2:]] == ["application/json"] * 3
    assert [request.query.get("wait") for request in server.requests] == [None, None, None, "20", "20"]
    assert server.cursors[3:] == [None, "1-3"]


async def test_a_long_poll_that_waited_and_brought_nothing_is_asked_again_at_once() -> None:
    time = Clockwork()

    async def waited(writer: asyncio.StreamWriter) -> None:
        time.now += 20
        await json_answer({"events": [], "cursor": "0-0", "more": True})(writer)

    rest = json_answer({"events": [json.loads(record.data) for record in TURN], "cursor": "1-7", "more": False})
    async with serving(hanging, hanging, json_answer({}, 202), waited, waited, rest) as server:
        run, _ = await play(server, time, timing=Timing(silence=0.2))
    assert (run.state, len(time.slept)) == (FINAL, 2)


async def test_a_long_poll_may_bring_a_snapshot_and_events_after_it() -> None:
    answer = {"events": [json.loads(TURN[-1].data)], "snapshot": snapshot(state_of(TURN[:6])), "cursor": "1-7"}
    async with serving(hanging, hanging, json_answer({}, 202), json_answer(answer)) as server:
        run, _ = await play(server, timing=Timing(silence=0.2))
    assert run.state == FINAL


async def test_a_waiting_turn_is_looked_at_every_thirty_seconds_until_it_goes_on() -> None:
    time = Clockwork()
    resumed = log([events.TurnResumed(reason="decision", attempt=1)], first=6, epoch=2)
    ended = log([events.TurnCompleted(text="done")], first=7, epoch=2)
    first = stream(frames(WAITING), closing("suspended"))
    async with serving(
        first, looked(WAITING), looked(WAITING), looked([*WAITING, *resumed]), stream(frames(ended))
    ) as server:
        run, updates = await play(server, time)
    assert time.slept == [30, 30, 30]
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["turns", "s_1", "s_1", "s_1", "events"]
    assert statuses(updates) == ["connecting", "streaming", "waiting", "streaming", "completed"]
    assert sum(update.status == "waiting" for update in updates) == 1
    assert run.turn is not None
    assert run.turn.output == "done"


async def test_a_waiting_turn_that_ended_meanwhile_stops_the_client() -> None:
    end = [events.TurnResumed(reason="cancel", attempt=0), events.TurnInterrupted(reason="cancelled", by="ann")]
    ended = [*WAITING, *log(end, first=6, epoch=2)]
    async with serving(stream(frames(WAITING), closing("suspended")), looked(ended)) as server:
        run, _ = await play(server)
    assert (run.status, run.action, run.state) == ("interrupted", None, state_of(ended))


async def test_a_finished_turn_costs_at_most_one_more_request() -> None:
    """None at all, not even the end of a stream that its server leaves open."""
    async with serving(stream(WHOLE, hang=True)) as server, asyncio.timeout(5):
        await play(server, timing=Timing(silence=60))
    assert len(server.requests) == 1


async def test_a_turn_whose_end_is_at_the_cursor_is_known_after_one_look() -> None:
    async with serving(stream(frames(TURN[:3])), NO_CONTENT, looked(TURN)) as server:
        run, updates = await play(server)
    assert (run.state, statuses(updates)[-1], len(server.requests)) == (FINAL, "completed", 3)


async def test_a_turn_that_is_gone_keeps_its_draft_and_is_interrupted_with_a_way_to_retry() -> None:
    async with serving(stream(frames(TURN[:3])), problem(410, "turn_gone")) as server:
        run, updates = await play(server)
    assert (run.status, run.action, len(server.requests)) == ("interrupted", "retry", 2)
    assert updates[-1].state == state_of(TURN[:3])


async def test_a_turn_out_of_reach_for_five_minutes_is_interrupted_with_a_way_to_resume() -> None:
    time = Clockwork()
    async with serving(stream(frames(TURN[:3])), *[dropped] * 20) as server, client_of(server, time) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        updates = await live(run)
        assert statuses(updates) == ["connecting", "streaming", "reconnecting", "interrupted"]
        assert (run.action, client.unfinished("s_1")) == ("resume", "t_1")
    assert 300 <= time.now < 331


async def test_a_turn_left_for_later_is_resumed_from_its_cursor() -> None:
    script = [stream(frames(TURN[:3])), dropped, stream(frames(TURN[3:]))]
    async with serving(*script) as server, client_of(server, timing=Timing(give_up=1)) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        await live(run)
        assert (run.status, run.action) == ("interrupted", "resume")
        run = client.resume("s_1")
        await live(run)
    assert (run.state, server.cursors) == (FINAL, [None, "1-3", "1-3"])


async def test_a_turn_that_never_reached_its_server_is_left_to_be_sent_again() -> None:
    async with (
        serving(dropped, dropped, stream(WHOLE)) as server,
        client_of(server, timing=Timing(give_up=1)) as client,
    ):
        await live(client.turn("s_1", "hi", turn="t_1"))
        assert client.unfinished("s_1") == "t_1"
        run = client.resume("s_1")
        await live(run)
    assert [request.method for request in server.requests] == ["POST"] * 3
    assert run.state == FINAL


async def test_leaving_a_run_closes_its_connection() -> None:
    left = asyncio.Event()

    async def watched(writer: asyncio.StreamWriter) -> None:
        await stream(frames(TURN[:3]))(writer)
        while not writer.transport.is_closing():
            writer.write(sse.PING)
            await asyncio.sleep(0.01)
        left.set()

    async with serving(watched) as server, client_of(server) as client, asyncio.timeout(5):
        run = client.turn("s_1", "hi", turn="t_1")
        async with run:
            async for _ in run:
                if run.turn:
                    break
        await left.wait()


async def test_a_refused_token_is_refreshed_once() -> None:
    asked = list[bool]()

    async def token(fresh: bool) -> str:
        asked.append(fresh)
        return "dev:ann"

    async with serving(problem(401, "unauthorized"), stream(WHOLE)) as server:
        run, _ = await play(server, token=token)
    assert (run.state, asked) == (FINAL, [False, True])
    async with serving(*[problem(401, "unauthorized")] * 3) as server:
        run, _ = await play(server, token=token)
    assert (run.status, run.action, len(server.requests)) == ("interrupted", "resume", 2)
    assert run.refusal is not None
    assert run.refusal.code == "unauthorized"


@pytest.mark.parametrize(
    ("status", "code", "more", "kind"),
    [
        (409, "session_busy", {"turn": "t_0"}, SessionBusy),
        (409, "turn_conflict", {}, TurnConflict),
        (413, "input_too_large", {}, InputTooLarge),
        (422, "invalid", {"path": "input"}, Invalid),
        (403, "forbidden", {}, RequestRefused),
    ],
)
async def test_a_turn_refused_for_good_is_an_error_and_not_sent_again(
    status: int, code: str, more: dict[str, str], kind: type[Exception]
) -> None:
    async with serving(problem(status, code, **more)) as server, client_of(server) as client:
        with pytest.raises(kind) as raised:
            await live(client.turn("s_1", "hi", turn="t_1"))
        assert client.unfinished("s_1") is None
    assert len(server.requests) == 1
    assert more.items() <= vars(raised.value).items()


async def test_a_gap_is_resumed_at_once_from_the_cursor_before_it() -> None:
    time = Clockwork()
    async with serving(stream(frames([*TURN[:2], *TURN[3:]])), stream(frames(TURN[2:]))) as server:
        run, updates = await play(server, time)
    assert (server.cursors, time.slept) == ([None, "1-2"], [])
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))


async def test_a_gap_that_comes_back_is_a_broken_line() -> None:
    time, gap = Clockwork(), stream(frames(TURN[3:]))
    async with serving(gap, gap, stream(WHOLE)) as server:
        run, updates = await play(server, time)
    assert (run.state, time.slept) == (FINAL, [2])
    assert statuses(updates) == ["connecting", "streaming", "reconnecting", "streaming", "completed"]


async def test_a_turn_in_a_session_seen_for_the_first_time_starts_with_its_snapshot_on_an_unbroken_line() -> None:
    time = Clockwork()
    turn = log(PAYLOADS, first=8, turn="t_2", epoch=2)
    seen = sse.OPENING + sse.control("snapshot", snapshot(state_of([*TURN, *turn[:3]])), "2-10")
    script = [stream(frames(turn)), stream(seen, *map(sse.frame, turn[3:]))]
    async with serving(*script) as server, client_of(server, time) as client:
        run = client.turn("s_1", "hi", turn="t_2")
        updates = await live(run)
    assert [(request.method, request.cursor) for request in server.requests] == [("POST", None), ("GET", None)]
    assert run.state == state_of([*TURN, *turn])
    assert (statuses(updates), time.slept) == (["connecting", "streaming", "completed"], [])


async def test_a_snapshot_replaces_what_was_seen_even_when_it_sets_the_cursor_back() -> None:
    said = [events.TextDelta(step=1, text="W2"), events.TurnCompleted(text="w1 W2")]
    other = [*TURN[:2], *log([events.TurnResumed(reason="released", attempt=0), *said], 3, epoch=2)]
    seen = sse.control("snapshot", snapshot(state_of(other[:2])), "1-2")
    async with serving(stream(frames(TURN[:4])), stream(sse.OPENING, seen, *map(sse.frame, other[2:]))) as server:
        run, updates = await play(server)
    assert run.state == state_of(other)
    assert seqs(updates) == [1, 2, 3, 4, 3, 4, 5]


async def test_events_at_or_below_the_cursor_are_not_told_again() -> None:
    async with serving(stream(frames(TURN[:4])), stream(frames(TURN))) as server:
        run, updates = await play(server)
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))


@pytest.mark.parametrize(
    "broken",
    [
        b"id: 1-3\nevent: text.delta\ndata: {}\n\n",
        b"id: 1-3\ndata: [DONE]\n\n",
        b"id: 1-3\nevent: snapshot\ndata: {\n\n",
    ],
)
async def test_a_frame_that_makes_no_sense_breaks_the_stream_and_nothing_else(broken: bytes) -> None:
    async with serving(stream(frames(TURN[:2]), broken), stream(frames(TURN[2:]))) as server:
        run, _ = await play(server)
    assert (run.state, server.cursors) == (FINAL, [None, "1-2"])


async def test_a_frame_beyond_the_limit_breaks_the_stream_and_nothing_else() -> None:
    async with serving(
        stream(frames(TURN[:2]), b"data: ", b"x" * 400_000, hang=True), stream(frames(TURN[2:]))
    ) as server:
        run, _ = await play(server, max_bytes=10_000)
    assert (run.state, server.cursors) == (FINAL, [None, "1-2"])


@pytest.mark.parametrize(
    "answer", [json_answer([]), json_answer("x"), json_answer({}), json_answer({}, 302), json_answer({}, 502)]
)
async def test_an_answer_that_is_not_the_service_s_breaks_nothing(answer: Answer) -> None:
    async with serving(sign_in_page, answer, stream(WHOLE)) as server:
        run, _ = await play(server)
    assert run.state == FINAL


async def sign_in_page(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>sign in</html>")


async def test_a_followed_session_lives_on_through_its_turns() -> None:
    second = log(PAYLOADS, first=8, turn="t_2", epoch=2)
    start = sse.control("snapshot", snapshot(state_of(TURN[:2])), "1-2")
    script = [stream(sse.OPENING, start, *map(sse.frame, TURN[2:])), stream(frames(second), hang=True)]
    async with serving(*script) as server, client_of(server) as client, client.follow("s_1") as run:
        async for update in run:
            if update.state == state_of([*TURN, *second]):
                break
    assert [(request.query, request.cursor) for request in server.requests] == [({}, None), ({}, "1-7")]


async def test_following_a_session_that_is_not_there_is_an_error() -> None:
    async with serving(problem(404, "not_found")) as server, client_of(server) as client:
        with pytest.raises(NotFound):
            await live(client.follow("s_1"))
