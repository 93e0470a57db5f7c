"""Every request does what the protocol says, through either face."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import pytest

from harness import Answer, Caller, Server
from http_raw import JSON, refused, send

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


async def test_a_turn_is_streamed_from_its_start_to_its_end(told: Answer, session: str) -> None:
    assert told.status == 200
    assert told.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert told.headers["cache-control"] == "no-cache, no-transform"
    assert told.headers["x-accel-buffering"] == "no"
    assert (told.headers["legato-session"], told.headers["legato-turn"]) == (session, "t1")
    assert told.headers["legato-stream"]
    assert told.raw.startswith(b"retry: 1000\n:")
    assert told.raw.index(b"\n\n") > 4096
    assert [event["type"] for event in told.events][:: len(told.events) - 1] == ["turn.started", "turn.completed"]
    assert all(after["seq"] == before["seq"] + 1 for before, after in pairwise(told.events))


async def test_gzip_is_not_given_and_the_first_event_comes_at_once(ann: Caller, session: str) -> None:
    began = time.monotonic()
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br"}
    body = {"input": "/say 100 20", "turn": "t1"}
    async with ann.open("POST", f"/v1/sessions/{session}/turns", body=body, headers=headers) as answer:
        await answer.until("text.delta")
        assert time.monotonic() - began < 1
        assert "content-encoding" not in answer.headers
    await ann.cancel(session, "t1")


async def test_the_same_key_ten_times_at_once_is_one_turn(ann: Caller, session: str) -> None:
    async def start() -> Answer:
        headers = {"Accept": "text/event-stream", "Idempotency-Key": "k1"}
        body = {"input": "/say 5"}
        async with ann.open("POST", f"/v1/sessions/{session}/turns", body=body, headers=headers) as answer:
            await answer.rest()
        return answer

    answers = await asyncio.gather(*(start() for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    told = [[message.data for message in answer.messages if message.id] for answer in answers]
    assert all(lines == told[0] for lines in told)
    assert [event["type"] for event in answers[0].events].count("turn.started") == 1


async def test_the_same_key_with_another_body_is_a_conflict(ann: Caller, told: Answer, session: str) -> None:
    refused(await ann.begin(session, "another", turn="t1"), 409, "turn_conflict")


async def test_a_second_turn_is_told_which_one_is_active(ann: Caller, session: str) -> None:
    await ann.begin(session, "/sleep 30", turn="t1")
    problem = refused(await ann.begin(session, "more", turn="t2"), 409, "session_busy")
    assert problem["turn"] == "t1"
    assert (await ann.cancel(session, "t1")).status_code == 202


async def test_a_turn_started_for_json_runs_without_a_stream(ann: Caller, session: str) -> None:
    answer = await ann.begin(session, "/say 3", turn="t1")
    assert (answer.status_code, answer.json()) == (202, {"session": session, "turn": "t1", "status": "streaming"})
    async with ann.events(session, turn="t1", **{"from": "start"}) as events:
        await events.rest()
    assert events.ended


@pytest.mark.parametrize("after", ["garbage", "9-99", "1-0", "0-0", "-1", "\x7f", "1-1-1"])
async def test_a_cursor_that_cannot_be_is_answered_with_a_snapshot(
    ann: Caller, told: Answer, session: str, after: str
) -> None:
    async with ann.open("GET", f"/v1/sessions/{session}/events", params={"after": after}) as answer:
        first = await answer.next()
    assert (first.event, first.id) == ("snapshot", told.cursor)


async def test_a_cursor_in_the_header_is_taken_before_the_one_in_the_query(
    ann: Caller, told: Answer, session: str
) -> None:
    cursor = told.messages[0].id
    async with ann.events(session, after=cursor, turn="t1", **{"from": "start"}) as answer:
        await answer.rest()
    assert answer.messages == told.messages[1:]


async def test_a_finished_turn_behind_its_end_is_204(ann: Caller, told: Answer, session: str) -> None:
    path = f"/v1/sessions/{session}/events?turn=t1&after={told.cursor}"
    for accept in ("text/event-stream", "application/json"):
        answer = await send(ann, "GET", path, headers={"Accept": accept})
        assert (answer.status_code, answer.content) == (204, b"")


async def test_a_turn_that_its_session_does_not_know_is_gone(ann: Caller, told: Answer, session: str) -> None:
    refused(await send(ann, "GET", f"/v1/sessions/{session}/events?turn=t2"), 410, "turn_gone")


async def test_the_long_poll_gives_what_the_stream_gives(ann: Caller, told: Answer, session: str) -> None:
    path = f"/v1/sessions/{session}/events?from=start&turn=t1&wait=5"
    answer = await send(ann, "GET", path, headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    polled = answer.json()
    assert (polled["events"], polled["cursor"], polled["more"]) == (told.events, told.cursor, False)


async def test_the_long_poll_waits_for_what_comes_and_no_longer(ann: Caller, told: Answer, session: str) -> None:
    path = f"/v1/sessions/{session}/events?after={told.cursor}&wait=20"
    waiting = asyncio.create_task(send(ann, "GET", path, headers={"Accept": "application/json"}))
    await ann.begin(session, "/say 1", turn="t2")
    polled = (await asyncio.wait_for(waiting, 10)).json()
    assert polled["events"][0]["type"] == "turn.started"


async def test_the_long_poll_is_empty_when_nothing_comes(ann: Caller, told: Answer, session: str) -> None:
    path = f"/v1/sessions/{session}/events?after={told.cursor}&wait=0.2"
    answer = await send(ann, "GET", path, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()) == (200, {"events": [], "cursor": told.cursor, "more": True})


async def test_a_snapshot_is_sent_once_for_each_cursor(ann: Caller, told: Answer, session: str) -> None:
    first = await ann.snapshot(session)
    assert (first.status_code, first.headers["etag"]) == (200, f'"{told.cursor}"')
    assert first.json()["turns"][0]["output"] == told.text
    again = await ann.request("GET", f"/v1/sessions/{session}", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])


async def test_sessions_are_listed_newest_first_and_in_pages(served: Server, session: str) -> None:
    lister = served.caller(session)
    for name in ("s1", "s2", "s3"):
        async with lister.start(name, "/say 1", turn="t1") as answer:
            await answer.rest()
    page = (await lister.request("GET", "/v1/sessions?limit=2")).json()
    rest = (await lister.request("GET", f"/v1/sessions?limit=2&before={page['before']}")).json()
    assert [item["session"] for item in page["sessions"] + rest["sessions"]] == ["s3", "s2", "s1"]
    assert rest["before"] is None


async def test_a_cancel_is_taken_once_and_then_the_turn_has_ended(ann: Caller, session: str) -> None:
    async with ann.start(session, "/sleep 30", turn="t1") as answer:
        await answer.until("turn.started")
        assert (await ann.cancel(session, "t1", "enough")).status_code == 202
        await answer.rest()
    assert answer.events[-1]["type"] == "turn.interrupted"
    assert (answer.events[-1]["reason"], answer.events[-1]["by"]) == ("enough", "ann")
    assert (await send(ann, "POST", f"/v1/sessions/{session}/turns/t1/cancel")).status_code == 200


async def test_a_deleted_session_is_not_there(ann: Caller, told: Answer, session: str) -> None:
    assert (await ann.request("DELETE", f"/v1/sessions/{session}")).status_code == 204
    refused(await ann.snapshot(session), 404, "not_found")
    refused(await ann.request("DELETE", f"/v1/sessions/{session}"), 404, "not_found")


@pytest.mark.parametrize(
    "method_path",
    [
        "GET /v1/sessions/{}",
        "GET /v1/sessions/{}/events",
        "GET /v1/sessions/{}/events?turn=t1",
        "GET /v1/sessions/{}/events?from=start",
        "GET /v1/sessions/{}/events?after=1-1&turn=t1",
        "DELETE /v1/sessions/{}",
    ],
)
async def test_another_principals_session_is_not_there(
    served: Server, told: Answer, session: str, method_path: str
) -> None:
    method, path = method_path.format(session).split()
    answer = await served.caller("bob").request(method, path)
    refused(answer, 404, "not_found")
    assert not any(secret in answer.text for secret in ("w1", "t1", str(told.cursor), "ann"))


async def test_the_same_names_of_two_principals_are_two_turns(served: Server, told: Answer, session: str) -> None:
    answer = await served.caller("bob").begin(session, "something else", turn="t1")
    assert answer.status_code == 202


async def test_health_needs_no_name_and_names_the_instance(ann: Caller) -> None:
    answer = await send(ann, "GET", "/health", headers={"Authorization": ""})
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.headers["legato-instance"] == answer.json()["instance"]


@pytest.mark.parametrize("origin", ["https://app.example.com", "https://shop--pr7.web.app"])
async def test_a_listed_origin_may_ask_send_and_read(ann: Caller, session: str, origin: str) -> None:
    asked = await send(ann, "OPTIONS", f"/v1/sessions/{session}/turns", headers={**PREFLIGHT, "Origin": origin})
    assert asked.status_code == 204
    assert "Authorization" in asked.headers["access-control-allow-headers"]
    streamed = await send(
        ann, "POST", f"/v1/sessions/{session}/turns", b'{"input":"/say 1"}', {**JSON, "Origin": origin}
    )
    for answer in (asked, streamed, await send(ann, "GET", "/nowhere", headers={"Origin": origin})):
        assert answer.headers["access-control-allow-origin"] == origin
        assert "Legato-Turn" in answer.headers["access-control-expose-headers"]
        assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://evil.net", "null", "https://a.b--x.web.app", "http://app.example.com"])
async def test_any_other_origin_may_not(ann: Caller, session: str, origin: str) -> None:
    asked = await send(ann, "OPTIONS", f"/v1/sessions/{session}/turns", headers={**PREFLIGHT, "Origin": origin})
    read = await send(ann, "GET", "/health", headers={"Origin": origin})
    for answer in (asked, read):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "Origin"


async def test_no_answer_was_ever_an_accident_and_no_token_was_logged(served: Server, ann: Caller) -> None:
    await send(ann, "GET", "/v1/sessions", headers={"Authorization": "Bearer dev:sesame-1"})
    await send(ann, "GET", "/v1/sessions", headers={"Authorization": "Bearer sesame-2"})
    assert "Traceback" not in served.output()
    assert "sesame" not in served.output()


async def test_a_line_of_text_cannot_become_a_field_of_the_stream(ann: Caller, session: str) -> None:
    text = "a\r\nid: 9-9\n\ndata: {}\n\u2028event: x\u0085\x00"
    async with ann.start(session, {"note": text}, turn="t1") as answer:
        await answer.rest()
    assert json.loads(answer.messages[0].data)["input"] == {"note": text}
    assert {message.event for message in answer.messages} <= {"turn.started", "text.delta", "turn.completed"}
