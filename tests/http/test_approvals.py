"""A turn asks a person, and the answer comes over HTTP, through either face."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from harness import Answer, Caller


@pytest.fixture
async def asked(ann: Caller, session: str) -> Answer:
    """The stream of a turn `t1` up to where it waits."""
    async with ann.start(session, '/tool wire {"amount": 3}\n/say 2', turn="t1") as answer:
        await answer.rest()
    return answer


async def decide(ann: Caller, session: str, request: str = "1-1-1", **body: Any) -> httpx.Response:
    return await ann.request("POST", f"/v1/sessions/{session}/turns/t1/approvals/{request}", body)


async def test_a_stream_ends_with_the_question_and_says_that_its_turn_is_suspended(asked: Answer) -> None:
    question, suspended, closing = asked.messages[-3:]
    assert [question.event, suspended.event, closing.event] == [
        "approval.requested",
        "turn.suspended",
        "stream.closing",
    ]
    assert '"request":"1-1-1"' in question.data
    assert '"prompt":"Wire 3?"' in question.data
    assert '"reason":"suspended"' in closing.data


async def test_an_approval_is_taken_once_and_found_again(asked: Answer, ann: Caller, session: str) -> None:
    answers = [await decide(ann, session, approved=True, note="fine") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 200]
    assert answers[0].json() == {"session": session, "turn": "t1", "request": "1-1-1", "approved": True}
    async with ann.events(session, asked.cursor, turn="t1") as rest:
        await rest.rest()
    kinds = [event["type"] for event in rest.events]
    assert kinds[:3] == ["turn.resumed", "approval.resolved", "tool.result"]
    assert (rest.text, kinds[-1]) == ("w1 w2 ", "turn.completed")


async def test_a_decision_can_be_followed_by_what_becomes_of_its_turn(asked: Answer, ann: Caller, session: str) -> None:
    path = f"/v1/sessions/{session}/turns/t1/approvals/1-1-1"
    headers = {"Accept": "text/event-stream"}
    async with ann.open("POST", path, body={"approved": False}, headers=headers) as stream:
        await stream.rest()
    results = [event for event in stream.events if event["type"] == "tool.result"]
    assert [(result["ok"], result["error"]["code"]) for result in results] == [(False, "denied")]
    assert stream.messages[-1].event == "turn.completed"


async def test_a_decision_against_the_one_that_counts_is_a_conflict(asked: Answer, ann: Caller, session: str) -> None:
    await decide(ann, session, approved=True)
    answer = await decide(ann, session, approved=False)
    assert (answer.status_code, answer.json()["code"]) == (409, "already_decided")


async def test_a_question_that_nobody_asked_is_not_found(asked: Answer, ann: Caller, session: str) -> None:
    answer = await decide(ann, session, "1-1-2", approved=True)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_turn_that_has_ended_asks_nothing_any_more(ann: Caller, session: str) -> None:
    async with ann.start(session, "/say 1", turn="t1") as stream:
        await stream.rest()
    answer = await decide(ann, session, approved=True)
    assert (answer.status_code, answer.json()["code"]) == (409, "already_decided")
