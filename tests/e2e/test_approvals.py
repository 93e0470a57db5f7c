"""A turn waits for a person: nothing is held meanwhile, and of all that is decided one decision counts, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from conftest import Place
from e2e.duo import Duo
from e2e.following import reduced
from e2e.segments import Segments
from harness import Caller, Face

SCRIPT = '/say 2\n/tool wire {"amount": 5}\n/say 2'
ANSWER = "w1 w2 w3 w4 "
REQUEST = "1-1-1"
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> Face:
    """What happens to a turn does not depend on the face; the suites of the faces hold that."""
    chosen: Face = request.param
    return chosen


async def asked(caller: Caller, session: str) -> str:
    """Starts a turn that comes to wait; the cursor at which it does."""
    async with caller.start(session, SCRIPT, "t") as stream:
        await stream.rest()
    assert [message.event for message in stream.messages[-3:]] == [
        "approval.requested",
        "turn.suspended",
        "stream.closing",
    ]
    assert stream.events[-2]["request"] == REQUEST
    assert stream.cursor
    return stream.cursor


async def ended(caller: Caller, session: str) -> dict[str, Any]:
    """The turn in a snapshot, after its end."""
    async with caller.events(session, turn="t") as stream:
        await stream.rest()
    fields: dict[str, Any] = (await caller.snapshot(session)).json()["turns"][-1]
    return fields


def wired(place: Place, session: str) -> int:
    """How often the tool ran in the session."""
    lines = place.ledger.read_text().splitlines() if place.ledger.exists() else []
    return sum(f'"{session}/' in line for line in lines)


@pytest.mark.parametrize("wishes", [[True], [True, False], [False]], ids=["all approve", "they differ", "all deny"])
async def test_of_twenty_decisions_at_once_one_counts_and_the_tool_runs_once_or_never(
    duo: Duo, session: str, wishes: list[bool]
) -> None:
    await asked(duo.a.caller(), session)
    made = [wishes[number // 2 % len(wishes)] for number in range(20)]
    callers = [(duo.a, duo.b)[number % 2].caller() for number in range(20)]
    answers = await asyncio.gather(
        *(caller.decide(session, "t", REQUEST, wish) for caller, wish in zip(callers, made, strict=True))
    )
    counts = Counter(answer.status_code for answer in answers)
    won = next(wish for wish, answer in zip(made, answers, strict=True) if answer.status_code == 202)
    assert counts == Counter({202: 1, 200: made.count(won) - 1, 409: made.count(not won)})
    turn = await ended(duo.b.caller(), session)
    assert (turn["status"], turn["output"]) == ("completed", ANSWER)
    assert wired(duo.place, session) == won


async def test_a_decision_is_taken_after_every_instance_was_restarted(place: Place) -> None:
    servers = [place.server(name) for name in ("a", "b")]
    async with servers[0] as a, servers[1] as b:
        await asked(a.caller(), "s")
        for server in (a, b):
            server.kill9()
        await asyncio.gather(a.start(), b.start())
        assert (await b.caller().decide("s", "t", REQUEST, True)).status_code == 202
        turn = await ended(a.caller(), "s")
    assert (turn["status"], turn["output"], wired(place, "s")) == ("completed", ANSWER, 1)


async def test_a_turn_whose_events_have_expired_goes_on_from_its_checkpoint(duo: Duo, session: str) -> None:
    cursor = await asked(duo.a.caller(), session)
    segments = Segments(duo.place.journal, session)
    for first in await segments.firsts():
        await segments.delete(first)
    assert (await duo.b.caller().decide(session, "t", REQUEST, True)).status_code == 202
    turn = await ended(duo.a.caller(), session)
    assert (turn["status"], turn["output"], wired(duo.place, session)) == ("completed", ANSWER, 1)
    late = await duo.rest(duo.a, session, cursor, turn="t")
    assert reduced(session, late.messages).turns[-1].output == ANSWER


async def test_who_decides_may_follow_the_resumed_turn_in_the_answer(duo: Duo, session: str) -> None:
    await asked(duo.a.caller(), session)
    path = f"/v1/sessions/{session}/turns/t/approvals/{REQUEST}"
    async with duo.b.caller().open("POST", path, body={"approved": True}, headers=STREAM) as stream:
        await stream.rest()
    kinds = [event["type"] for event in stream.events]
    assert kinds == ["turn.resumed", "approval.resolved", "tool.result", *["text.delta"] * 2, "turn.completed"]
    assert [event["reason"] for event in stream.events[:1]] == ["decision"]


async def test_the_first_decision_stands(duo: Duo, session: str) -> None:
    """Also once the turn has ended: the same one again is told so, another one refused."""
    await asked(duo.a.caller(), session)
    decided = [(await server.caller().decide(session, "t", REQUEST, False, note="no")) for server in (duo.a, duo.b)]
    assert [answer.status_code for answer in decided] == [202, 200]
    other = await duo.b.caller().decide(session, "t", REQUEST, True)
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    turn = await ended(duo.b.caller(), session)
    assert (turn["status"], wired(duo.place, session)) == ("completed", 0)
    late = [(await duo.a.caller().decide(session, "t", REQUEST, wish)).status_code for wish in (False, True)]
    assert late == [200, 409]


async def test_what_was_not_asked_of_the_caller_is_not_there(duo: Duo, session: str) -> None:
    await asked(duo.a.caller(), session)
    for caller, turn, request, status in (
        (duo.b.caller(), "t", "1-1-2", 404),
        (duo.b.caller("bob"), "t", REQUEST, 404),
        (duo.b.caller(), "other", REQUEST, 410),
    ):
        assert (await caller.decide(session, turn, request, True)).status_code == status
    assert wired(duo.place, session) == 0


async def test_what_nobody_decides_in_time_is_denied(place: Place) -> None:
    async with place.server("a", LEGATO_APPROVAL="1") as a, place.server("b") as b:
        cursor = await asked(a.caller(), "s")
        await asyncio.sleep(1)
        late = await b.caller().decide("s", "t", REQUEST, True)
        assert (late.status_code, late.json()["code"]) == (409, "already_decided")
        async with b.caller().events("s", cursor, turn="t") as stream:
            await stream.rest()
    (resolved,) = (event for event in stream.events if event["type"] == "approval.resolved")
    assert (resolved["approved"], resolved["by"]) == (False, "expiry")
    assert stream.events[-1]["type"] == "turn.completed"
    assert wired(place, "s") == 0
