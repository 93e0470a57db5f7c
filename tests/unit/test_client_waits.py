"""The client of a turn that waits for a person, or that changes hands: what it shows, and when it asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client_play import (
    ASKED,
    GOES_ON,
    PAYLOADS,
    Clockwork,
    client_of,
    closing,
    frames,
    live,
    log,
    looked,
    seqs,
    state_of,
    statuses,
)
from legato import events, sse
from legato.client import LegatoClient, Update
from legato.errors import AlreadyDecided
from legato.turn import snapshot
from scripted_server import Answer, ScriptedServer, json_answer, problem, serving, stream

SUSPENDED = stream(frames(ASKED), closing("suspended"))
STILL = stream(sse.OPENING, closing("suspended"))


class Held(Clockwork):
    """Time in which a look's pause ends only when it is let go; `looks` is set when one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.let_go = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds >= 30:
            self.looks.set()
            await self.let_go.wait()
        await super().sleep(seconds)


async def decided(server: ScriptedServer, time: Held) -> AsyncIterator[tuple[LegatoClient, asyncio.Task[list[Update]]]]:
    """A client whose turn waits, with its look far away."""
    async with asyncio.timeout(5), client_of(server, time) as client:
        living = asyncio.create_task(live(client.turn("s_1", "hi", turn="t_1")))
        await time.looks.wait()
        yield client, living


async def test_a_suspended_turn_is_shown_with_its_open_questions() -> None:
    async with serving(SUSPENDED, looked([*ASKED, *GOES_ON])) as server, client_of(server) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        updates = await live(run)
    waiting = next(update for update in updates if update.status == "waiting")
    assert waiting.state.active is not None
    (question,) = waiting.state.active.questions
    assert (question.request, question.prompt) == ("1-1-1", "Wire 5?")
    assert (run.status, run.state) == ("completed", state_of([*ASKED, *GOES_ON]))


async def test_a_decision_made_here_resumes_the_stream_at_once() -> None:
    time = Held()
    async with serving(SUSPENDED, json_answer({}, 202), stream(frames(GOES_ON))) as server:
        async for client, living in decided(server, time):
            await client.decide("s_1", "t_1", "1-1-1", True)
            updates = await living
    assert [(request.method, request.cursor) for request in server.requests][1:] == [("POST", None), ("GET", "1-6")]
    assert (seqs(updates), time.slept) == (list(range(1, 11)), [])
    assert statuses(updates) == ["connecting", "streaming", "waiting", "streaming", "completed"]


async def test_a_decision_that_another_made_first_resumes_the_stream_at_once_too() -> None:
    time = Held()
    async with serving(SUSPENDED, problem(409, "already_decided"), stream(frames(GOES_ON))) as server:
        async for client, living in decided(server, time):
            with pytest.raises(AlreadyDecided):
                await client.decide("s_1", "t_1", "1-1-1", False)
            await living
    assert time.slept == []


async def test_a_cancel_made_here_is_seen_at_once() -> None:
    resumed, time = events.TurnResumed(reason="cancel", attempt=0), Held()
    end = log([resumed, events.TurnInterrupted(reason="cancelled", by="ann")], first=7, epoch=2)
    async with serving(SUSPENDED, json_answer({}, 202), stream(frames(end))) as server:
        async for client, living in decided(server, time):
            await client.cancel("s_1", "t_1")
            updates = await living
    assert (statuses(updates)[-1], time.slept) == ("interrupted", [])


async def test_a_turn_that_has_not_gone_on_yet_after_a_decision_is_reached_for_a_few_times() -> None:
    time = Held()
    async with serving(SUSPENDED, json_answer({}, 202), STILL, STILL, stream(frames(GOES_ON))) as server:
        async for client, living in decided(server, time):
            await client.decide("s_1", "t_1", "1-1-1", True)
            await living
    assert time.slept == [1, 2]


async def test_a_decision_in_another_turn_or_session_resumes_nothing() -> None:
    time = Held()
    async with serving(SUSPENDED, *[json_answer({}, 202)] * 2, looked([*ASKED, *GOES_ON])) as server:
        async for client, living in decided(server, time):
            await client.decide("s_1", "t_2", "1-1-1", True)
            await client.decide("s_2", "t_1", "1-1-1", True)
            time.let_go.set()
            await living
    assert [request.path for request in server.requests][-1] == "/v1/sessions/s_1"
    assert time.slept == [30]


async def test_a_second_question_is_waited_for_like_the_first() -> None:
    more = log(
        [
            events.TurnResumed(reason="decision", attempt=0),
            events.ApprovalResolved(request="1-1-1", approved=True, by="ann"),
            events.TurnSuspended(reason="approval"),
        ],
        first=7,
        epoch=2,
    )
    time = Clockwork()
    end = [events.TurnResumed(reason="cancel", attempt=0), events.TurnInterrupted(reason="no", by="ann")]
    ended = looked([*ASKED, *more, *log(end, first=10, epoch=3)])
    script = [SUSPENDED, looked([*ASKED, *more[:1]]), stream(frames(more[1:]), closing("suspended")), ended]
    async with serving(*script) as server, client_of(server, time) as client:
        updates = await live(client.turn("s_1", "hi", turn="t_1"))
    assert statuses(updates) == ["connecting", "streaming", "waiting", "streaming", "waiting", "interrupted"]
    assert time.slept == [30, 30]


@pytest.mark.parametrize("reason", ["decision", "expiry", "cancel"])
async def test_a_look_that_finds_the_turn_streaming_resumes_its_stream(reason: str) -> None:
    resumed = log([events.TurnResumed(reason=reason, attempt=0)], first=7, epoch=2)
    script = [SUSPENDED, looked([*ASKED, *resumed]), stream(frames(GOES_ON[1:]))]
    async with serving(*script) as server, client_of(server) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        await live(run)
    assert (run.status, server.cursors) == ("completed", [None, None, "2-7"])


async def test_a_snapshot_with_a_waiting_turn_is_a_waiting_turn() -> None:
    seen = sse.control("snapshot", snapshot(state_of(ASKED)), "1-6")
    time = Clockwork()
    async with (
        serving(stream(sse.OPENING, seen, closing("suspended")), looked([*ASKED, *GOES_ON])) as server,
        client_of(server, time) as client,
    ):
        updates = await live(client.resume("s_1", "t_1"))
    assert (statuses(updates), time.slept) == (["connecting", "streaming", "waiting", "completed"], [30])


async def test_a_followed_session_waits_with_its_turn_and_follows_on() -> None:
    time = Clockwork()
    script = [SUSPENDED, looked(ASKED), looked([*ASKED, *GOES_ON[:1]]), stream(frames(GOES_ON[1:]), hang=True)]
    async with serving(*script) as server, client_of(server, time) as client, client.follow("s_1") as run:
        updates = []
        async for update in run:
            updates.append(update)
            if run.state.turns:
                break
    assert (statuses(updates)[:3], time.slept) == (["connecting", "streaming", "waiting"], [30, 30])


@pytest.mark.parametrize(
    "gone", [problem(410, "turn_gone"), json_answer({**snapshot(state_of(ASKED)), "active": None, "cursor": "9-90"})]
)
async def test_what_was_seen_of_a_turn_that_is_gone_stays(gone: Answer) -> None:
    """Whether its stream says so, or a look finds a session that does not know it any more."""
    async with serving(SUSPENDED, gone, problem(410, "turn_gone")) as server, client_of(server) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        await live(run)
    assert (run.status, run.action) == ("interrupted", "retry")
    assert run.turn is not None
    assert (run.turn.input, run.turn.text) == ("hi", state_of(ASKED[:3]).active.text)  # type: ignore[union-attr]


TAKEN = [
    events.TurnResumed(reason="lease_expired", attempt=1),
    events.StepRewound(step=1),
    events.TextDelta(step=1, text="w1 w2 w3"),
    events.TurnCompleted(text="w1 w2 w3"),
]


async def test_a_turn_that_is_taken_over_in_mid_stream_is_one_turn() -> None:
    taken = log(TAKEN, first=4, epoch=2)
    script = [stream(frames(log(PAYLOADS[:3]))), stream(frames(taken))]
    async with serving(*script) as server, client_of(server) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        updates = await live(run)
    assert seqs(updates) == list(range(1, 8))
    assert (run.state, run.state.turns[0].output) == (state_of([*log(PAYLOADS[:3]), *taken]), "w1 w2 w3")


async def test_a_cursor_that_the_journal_never_got_is_answered_by_a_snapshot_and_nothing_is_said_twice() -> None:
    taken = log(TAKEN, first=3, epoch=2)
    seen = sse.control("snapshot", snapshot(state_of([*log(PAYLOADS[:2]), taken[0]])), "2-3")
    script = [stream(frames(log(PAYLOADS[:3]))), stream(sse.OPENING, seen, *map(sse.frame, taken[1:]))]
    async with serving(*script) as server, client_of(server) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        await live(run)
    assert server.cursors == [None, "1-3"]
    assert run.state == state_of([*log(PAYLOADS[:2]), *taken])
