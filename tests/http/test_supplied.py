"""A turn asks its user for a credential, which comes over HTTP, through either face."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from harness import Answer, Caller, Server

SECRET = "correct-horse-battery-staple"
SCRIPT = '/tool mail {"to": "bob"}\n/say 2'


@pytest.fixture
async def asked(ann: Caller, session: str) -> Answer:
    """The stream of a turn `t1` up to where it waits."""
    async with ann.start(session, SCRIPT, turn="t1") as answer:
        await answer.rest()
    return answer


async def test_a_stream_ends_with_what_is_asked_for_and_a_snapshot_says_it(
    asked: Answer, ann: Caller, session: str
) -> None:
    assert [message.event for message in asked.messages[-3:]] == [
        "credential.required",
        "turn.suspended",
        "stream.closing",
    ]
    required = asked.events[-2]
    assert (required["name"], required["reason"], asked.events[-1]["reason"]) == ("mail", "mail needs it", "credential")
    active = (await ann.snapshot(session)).json()["active"]
    assert active["status"] == "waiting"
    assert active["credentials"] == [
        {"name": "mail", "reason": "mail needs it", "expires_at": required["expires_at"]},
    ]


async def test_what_is_supplied_is_used_and_told_to_nobody(
    asked: Answer, ann: Caller, session: str, served: Server
) -> None:
    answer = await ann.supply(session, "t1", "mail", SECRET, expires_in=60)
    assert (answer.status_code, answer.json()) == (202, {"session": session, "turn": "t1", "name": "mail"})
    async with ann.events(session, asked.cursor, turn="t1") as rest:
        await rest.rest()
    kinds = [event["type"] for event in rest.events]
    assert kinds[:3] == ["turn.resumed", "credential.supplied", "tool.result"]
    assert (rest.text, kinds[-1]) == ("w1 w2 ", "turn.completed")
    told = [answer.text, (await ann.snapshot(session)).text, *(message.data for message in rest.messages)]
    assert SECRET not in "".join([*told, served.output()])


async def test_who_supplies_it_may_follow_what_becomes_of_the_turn(asked: Answer, ann: Caller, session: str) -> None:
    path = f"/v1/sessions/{session}/turns/t1/credentials/mail"
    async with ann.open("POST", path, body={"value": SECRET}, headers={"Accept": "text/event-stream"}) as stream:
        await stream.rest()
    kinds = [event["type"] for event in stream.events]
    assert kinds == ["turn.resumed", "credential.supplied", "tool.result", *["text.delta"] * 2, "turn.completed"]


async def test_what_is_not_taken_is_asked_for_again_by_the_next_call(ann: Caller, session: str) -> None:
    async with ann.start(session, f'/tool mail {{"to": "eve"}}\n{SCRIPT}', turn="t1") as first:
        await first.rest()
    for value, last in (("wrong", "stream.closing"), (SECRET, "turn.completed")):
        path = f"/v1/sessions/{session}/turns/t1/credentials/mail"
        async with ann.open("POST", path, body={"value": value}, headers={"Accept": "text/event-stream"}) as stream:
            await stream.rest()
        assert stream.messages[-1].event == last
    tools = (await ann.snapshot(session)).json()["turns"][-1]["tools"]
    assert [tool.get("error", {}).get("code") for tool in tools] == ["credential_rejected", None]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "value"),
        ({"value": ""}, "value"),
        ({"value": 5}, "value"),
        ({"value": "x" * 16385}, "value"),
        ({"value": "é" * 8193}, "value"),
        ({"value": SECRET, "expires_in": 0}, "expires_in"),
        ({"value": SECRET, "expires_in": "60"}, "expires_in"),
        ({"value": SECRET, "expires_in": 1e9}, "expires_in"),
        ({"value": SECRET, "note": SECRET}, "note"),
    ],
)
async def test_a_body_that_is_not_whole_is_refused_and_not_repeated(
    asked: Answer, ann: Caller, session: str, body: dict[str, Any], path: str
) -> None:
    answer = await ann.request("POST", f"/v1/sessions/{session}/turns/t1/credentials/mail", body)
    assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, "invalid", path)
    assert SECRET not in answer.text
    assert (await ann.snapshot(session)).json()["active"]["status"] == "waiting"


async def test_as_large_a_value_as_is_taken_is_kept(asked: Answer, ann: Caller, session: str) -> None:
    assert (await ann.supply(session, "t1", "mail", "é" * 8192)).status_code == 202


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_what_was_not_asked_of_the_caller_is_not_there(
    asked: Answer, ann: Caller, session: str, served: Server
) -> None:
    assert code(await ann.supply(session, "t1", "drive", SECRET)) == (404, "not_found")
    assert code(await ann.supply(session, "t9", "mail", SECRET)) == (410, "turn_gone")
    assert code(await served.caller("bob").supply(session, "t1", "mail", SECRET)) == (404, "not_found")
    assert code(await ann.supply(session, "t1", "a%20b", SECRET)) == (422, "invalid")


async def test_a_turn_that_has_ended_asks_for_nothing_any_more(asked: Answer, ann: Caller, session: str) -> None:
    await ann.cancel(session, "t1")
    async with ann.events(session, asked.cursor, turn="t1") as rest:
        await rest.rest()
    assert code(await ann.supply(session, "t1", "mail", SECRET)) == (409, "already_decided")
