"""Every request is answered as the protocol says, whatever face it came through."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from legato import errors
from legato.engine.run import StartTurn
from legato.events import Cursor
from legato.gateway import NONSENSE
from legato.http.api import ROUTES, handle
from legato.http.message import Answer, Request
from legato.http.seat import Seat
from legato.journal import Place, SessionKey
from legato.principal import Principal
from scripted_gateway import ScriptedStream, Stage

ANN = SessionKey("ann", "s1")
TURNS = "/v1/sessions/s1/turns"
EVENTS = "/v1/sessions/s1/events"
DECIDED = {"session": "s1", "turn": "t1", "request": "r1"}


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def ask(stage: Stage, method: str, target: str, body: Any = None, **headers: str) -> Answer:
    """Header names are written with underscores."""
    path, _, query = target.partition("?")
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"authorization": "Bearer dev:ann", **({"content-type": "application/json"} if content else {}), **named}
    return await handle(stage, Request(method, path, query, sent, content), Seat())


def fields(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer.body, bytes)
    parsed: dict[str, Any] = json.loads(answer.body)
    return parsed


async def frames(answer: Answer) -> list[bytes]:
    assert isinstance(answer.body, AsyncGenerator)
    async with aclosing(answer.body) as body:
        return [frame async for frame in body]


def refused(answer: Answer, status: int, code: str, path: str | None = None) -> dict[str, Any]:
    problem = fields(answer)
    assert (answer.status, problem["status"], problem["code"], problem.get("path")) == (status, status, code, path)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["type"] == "about:blank"
    assert problem["title"]
    assert problem["detail"]
    return problem


async def test_a_turn_is_started_as_asked_and_streamed_from_its_start(stage: Stage) -> None:
    body = {"turn": "t1", "input": {"a": 1}, "agent": "b", "if_active": "interrupt", "retry_of": "t0"}
    answer = await ask(stage, "POST", TURNS, body)
    assert await frames(answer) == [b"one", b"two"]
    assert stage.gateway.calls == [
        ("start", ANN, StartTurn("t1", {"a": 1}, "b", "interrupt", "t0")),
        ("attach", ANN, "t1"),
    ]


async def test_a_stream_says_what_it_is_and_that_no_hop_may_hold_it(stage: Stage) -> None:
    answer = await ask(stage, "GET", EVENTS)
    expected = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
        "Legato-Session": "s1",
        "Legato-Turn": "t1",
        "Legato-Stream": "st_1",
        "Legato-Instance": "i1",
        "Vary": "Origin",
    }
    assert answer.headers == expected
    assert await frames(answer) == [b"one", b"two"]


async def test_a_turn_started_for_json_is_accepted_without_a_stream(stage: Stage) -> None:
    answer = await ask(stage, "POST", TURNS, {"turn": "t1", "input": 1}, accept="application/json")
    assert answer.status == 202
    assert fields(answer) == {"session": "s1", "turn": "t1", "status": "streaming"}
    assert [call[0] for call in stage.gateway.calls] == ["start"]


async def test_the_idempotency_key_names_the_turn(stage: Stage) -> None:
    answer = await ask(stage, "POST", TURNS, {"input": 1}, accept="application/json", idempotency_key="k1")
    assert fields(answer)["turn"] == "k1"


async def test_a_turn_without_a_name_is_given_one_of_its_own(stage: Stage) -> None:
    named = [fields(await ask(stage, "POST", TURNS, {"input": 1}, accept="application/json"))["turn"] for _ in "ab"]
    assert named[0] != named[1]


async def test_two_different_names_of_a_turn_are_refused(stage: Stage) -> None:
    refused(await ask(stage, "POST", TURNS, {"turn": "t1", "input": 1}, idempotency_key="t2"), 422, "invalid", "turn")
    answer = await ask(stage, "POST", TURNS, {"input": 1}, idempotency_key="a b")
    refused(answer, 422, "invalid", "header.Idempotency-Key")
    assert not stage.gateway.calls


@pytest.mark.parametrize(
    ("target", "header", "follow"),
    [
        (EVENTS, None, (None, False, None)),
        (f"{EVENTS}?after=3-7", None, (Cursor(3, 7), False, None)),
        (f"{EVENTS}?after=3-7&turn=t1", "3-9", (Cursor(3, 9), False, "t1")),
        (f"{EVENTS}?from=start", None, (None, True, None)),
        (f"{EVENTS}?from=start", "3-9", (Cursor(3, 9), False, None)),
        (f"{EVENTS}?after=garbage", None, (NONSENSE, False, None)),
        (f"{EVENTS}?after=", None, (NONSENSE, False, None)),
        (f"{EVENTS}?after=%ff%00", None, (NONSENSE, False, None)),
        (EVENTS, "", (None, False, None)),
        (EVENTS, "\x00é", (NONSENSE, False, None)),
    ],
)
async def test_a_stream_goes_on_where_the_client_says(
    stage: Stage, target: str, header: str | None, follow: tuple[Any, ...]
) -> None:
    headers = {} if header is None else {"last_event_id": header}
    assert (await ask(stage, "GET", target, **headers)).status == 200
    assert stage.gateway.calls == [("follow", ANN, *follow)]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("from=other", "query.from"),
        ("from=", "query.from"),
        ("from=start&after=1-1", "query.from"),
        ("wait=-1", "query.wait"),
        ("wait=abc", "query.wait"),
        ("turn=a%20b", "query.turn"),
        ("turn=", "query.turn"),
        ("turn=t%0d%0aX:y", "query.turn"),
        ("x=1", "query.x"),
        ("after=1-1&after=1-2", "query.after"),
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused_with_its_field(stage: Stage, query: str, path: str) -> None:
    refused(await ask(stage, "GET", f"{EVENTS}?{query}", accept="application/json"), 422, "invalid", path)
    assert not stage.gateway.calls


@pytest.mark.parametrize(
    ("query", "accept", "wait"),
    [("?wait=20", "application/json", 20.0), ("?wait=1.5", "*/*", 1.5), ("", "application/json", 0.0)],
)
async def test_events_as_json_are_polled(stage: Stage, query: str, accept: str, wait: float) -> None:
    answer = await ask(stage, "GET", EVENTS + query, accept=accept)
    assert fields(answer) == {"events": [], "cursor": "1-1", "more": False}
    assert stage.gateway.calls == [("poll", ANN, None, False, None, wait)]


async def test_a_wait_asked_of_a_stream_is_not_acceptable(stage: Stage) -> None:
    refused(await ask(stage, "GET", f"{EVENTS}?wait=20", accept="text/event-stream"), 406, "not_acceptable")


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_nothing_left_to_send_is_204(stage: Stage, accept: str) -> None:
    stage.gateway.stream = None
    answer = await ask(stage, "GET", f"{EVENTS}?turn=t1", accept=accept)
    assert (answer.status, answer.body) == (204, b"")
    assert "Content-Type" not in answer.headers


async def test_a_snapshot_is_tagged_with_its_cursor(stage: Stage) -> None:
    answer = await ask(stage, "GET", "/v1/sessions/s1?before=5")
    assert (answer.status, answer.headers["ETag"], fields(answer)["cursor"]) == (200, '"3-7"', "3-7")
    assert stage.gateway.calls == [("snapshot", ANN, 5)]


@pytest.mark.parametrize("condition", ['"3-7"', 'W/"3-7"', '"1-1", "3-7"', "*"])
async def test_a_snapshot_that_the_client_has_is_not_sent_again(stage: Stage, condition: str) -> None:
    answer = await ask(stage, "GET", "/v1/sessions/s1", if_none_match=condition)
    assert (answer.status, answer.body, answer.headers["ETag"]) == (304, b"", '"3-7"')


@pytest.mark.parametrize("condition", ['"3-6"', "3-7", '""'])
async def test_a_snapshot_that_the_client_does_not_have_is_sent(stage: Stage, condition: str) -> None:
    assert (await ask(stage, "GET", "/v1/sessions/s1", if_none_match=condition)).status == 200


async def test_sessions_are_listed_in_pages(stage: Stage) -> None:
    assert (await ask(stage, "GET", "/v1/sessions?before=99-s1&limit=3")).status == 200
    await ask(stage, "GET", "/v1/sessions")
    assert stage.gateway.calls == [("sessions", "ann", Place(99, "s1"), 3), ("sessions", "ann", None, 20)]


@pytest.mark.parametrize(("ended", "status"), [(False, 202), (True, 200)])
async def test_a_cancel_says_whether_the_turn_had_ended(stage: Stage, ended: bool, status: int) -> None:
    stage.gateway.ended = ended
    answer = await ask(stage, "POST", f"{TURNS}/t1/cancel", {"reason": "enough"})
    assert (answer.status, fields(answer)) == (status, {"session": "s1", "turn": "t1", "ended": ended})
    assert stage.gateway.calls == [("cancel", ANN, "t1", "enough", "ann")]


async def test_a_cancel_needs_no_body(stage: Stage) -> None:
    assert (await ask(stage, "POST", f"{TURNS}/t1/cancel")).status == 202


@pytest.mark.parametrize(("body", "path"), [({"reason": 1}, "reason"), ({"reason": ""}, "reason"), ({"x": 1}, "x")])
async def test_a_cancel_with_another_body_is_refused(stage: Stage, body: Any, path: str) -> None:
    refused(await ask(stage, "POST", f"{TURNS}/t1/cancel", body), 422, "invalid", path)


async def test_a_session_is_deleted(stage: Stage) -> None:
    assert (await ask(stage, "DELETE", "/v1/sessions/s1")).status == 204
    assert stage.gateway.calls == [("delete", ANN)]


@pytest.mark.parametrize(("again", "status"), [(False, 202), (True, 200)])
async def test_a_decision_says_whether_it_had_been_made_before(stage: Stage, again: bool, status: int) -> None:
    stage.gateway.ended = again
    answer = await ask(stage, "POST", f"{TURNS}/t1/approvals/r1", {"approved": False, "note": "no"})
    assert stage.gateway.calls == [("decide", ANN, "t1", "r1", False, "no")]
    assert (answer.status, fields(answer)) == (status, {**DECIDED, "approved": False})


@pytest.mark.parametrize(("headers", "cursor"), [({}, None), ({"last_event_id": "2-5"}, Cursor(2, 5))])
async def test_a_decision_is_followed_by_its_turns_stream(
    stage: Stage, headers: dict[str, str], cursor: Cursor | None
) -> None:
    path = f"{TURNS}/t1/approvals/r1"
    answer = await ask(stage, "POST", path, {"approved": True}, accept="text/event-stream", **headers)
    assert await frames(answer) == [b"one", b"two"]
    assert stage.gateway.calls[1:] == [("follow_decided", ANN, "t1", cursor)]


@pytest.mark.parametrize(
    ("method", "path", "body", "accept"),
    [
        ("POST", TURNS, {"input": "hi"}, "text/event-stream"),
        ("POST", f"{TURNS}/t1/approvals/r1", {"approved": True}, "text/event-stream"),
        ("GET", EVENTS, None, "text/event-stream"),
        ("GET", EVENTS, None, "application/json"),
    ],
)
async def test_whatever_is_read_on_is_read_on_with_its_callers_token(
    stage: Stage, method: str, path: str, body: Any, accept: str
) -> None:
    await ask(stage, method, path, body, accept=accept, authorization="Bearer dev:ann:99")
    assert stage.gateway.callers == [Principal("ann", 99)]


async def test_a_fresh_token_is_brought_to_a_stream(stage: Stage) -> None:
    path = "/v1/sessions/s1/auth"
    answer = await ask(stage, "POST", path, {"stream": "st_1"}, authorization="Bearer dev:ann:99")
    assert (answer.status, answer.body) == (204, b"")
    assert stage.gateway.calls == [("prolong", ANN, "st_1", Principal("ann", 99))]


@pytest.mark.parametrize(
    ("body", "path"),
    [({}, "stream"), ({"stream": 1}, "stream"), ({"stream": "a b"}, "stream"), ({"stream": "a", "more": 1}, "more")],
)
async def test_a_token_brought_to_nothing_is_refused(stage: Stage, body: Any, path: str) -> None:
    refused(await ask(stage, "POST", "/v1/sessions/s1/auth", body), 422, "invalid", path)
    assert (await ask(stage, "POST", "/v1/sessions/s1/auth")).status == 415
    assert (await ask(stage, "POST", "/v1/sessions/s1/auth?x=1", {"stream": "a"})).status == 422
    assert not stage.gateway.calls


@pytest.mark.parametrize("body", [None, {}, {"approved": "perhaps"}, {"approved": True, "more": 1}])
async def test_a_decision_that_decides_nothing_is_refused(stage: Stage, body: Any) -> None:
    answer = await ask(stage, "POST", f"{TURNS}/t1/approvals/r1", body)
    assert 400 <= answer.status < 500
    assert not stage.gateway.calls


async def test_health_is_told_to_anybody(stage: Stage) -> None:
    answer = await ask(stage, "GET", "/health", authorization="")
    assert (answer.status, fields(answer)) == (200, {"status": "ok"})


async def test_a_credential_is_handed_over_and_answered_with_its_name(stage: Stage) -> None:
    answer = await ask(stage, "POST", f"{TURNS}/t1/credentials/mail", {"value": "s3cret", "expires_in": 60})
    assert stage.gateway.calls == [("supply", ANN, "t1", "mail", "s3cret", 60)]
    assert (answer.status, fields(answer)) == (202, {"session": "s1", "turn": "t1", "name": "mail"})
    stage.gateway.ended = True
    assert (await ask(stage, "POST", f"{TURNS}/t1/credentials/mail", {"value": "s3cret"})).status == 200


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v2/sessions", "/v1/sessions/", "/v1/sessions/s1/", "/v1/sessions//events", "/V1/sessions",
     f"{TURNS}/t1/approvals", "/health/", "//v1/sessions"],
)  # fmt: skip
async def test_a_path_that_is_not_served_is_not_found(stage: Stage, path: str) -> None:
    refused(await ask(stage, "GET", path), 404, "unknown_path")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (TURNS, "POST"),
        (f"{TURNS}/t1/approvals/r1", "POST"),
        (f"{TURNS}/t1/credentials/mail", "POST"),
        (EVENTS, "GET"),
        ("/v1/sessions/s1", "GET, DELETE"),
        ("/v1/sessions", "GET"),
        (f"{TURNS}/t1/cancel", "POST"),
        ("/v1/sessions/s1/auth", "POST"),
        ("/health", "GET"),
    ],
)
@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "get"])
async def test_a_method_that_is_not_served_is_told_which_are(stage: Stage, method: str, path: str, allow: str) -> None:
    answer = await ask(stage, method, path)
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == allow


@pytest.mark.parametrize("route", [route for route in ROUTES if route.private], ids=lambda route: route.path.pattern)
async def test_every_private_route_turns_a_stranger_away(stage: Stage, route: Any) -> None:
    path = route.path.pattern.replace("(?P<session>[^/]+)", "s1").replace("(?P<turn>[^/]+)", "t1")
    answer = await ask(stage, route.method, path, authorization="Bearer ann")
    refused(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert not stage.gateway.calls


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/sessions/a b/events", "session"),
        ("/v1/sessions/-a/events", "session"),
        ("/v1/sessions/a\r\nX: y", "session"),
        ("/v1/sessions/é", "session"),
        ("/v1/sessions/" + "a" * 65, "session"),
    ],
)
async def test_an_id_out_of_pattern_is_refused_and_not_repeated(stage: Stage, path: str, field: str) -> None:
    answer = await ask(stage, "GET", path)
    refused(answer, 422, "invalid", field)
    assert not any("\n" in text or "é" in text for text in answer.headers.values())


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_body_where_none_belongs_is_refused(stage: Stage, method: str) -> None:
    answer = await ask(stage, method, "/v1/sessions/s1", content_length="3")
    refused(answer, 422, "invalid", "body")
    refused(await ask(stage, method, "/v1/sessions/s1", transfer_encoding="chunked"), 422, "invalid", "body")


async def test_a_body_above_the_limit_is_413(stage: Stage) -> None:
    refused(await ask(stage, "POST", TURNS, {"input": "x" * 2000}), 413, "too_large")


@pytest.mark.parametrize(
    ("error", "status", "code", "more"),
    [
        (errors.Invalid("agent", "no such agent"), 422, "invalid", {"path": "agent"}),
        (errors.NotFound("no such session"), 404, "not_found", {}),
        (errors.TurnGone("unknown"), 410, "turn_gone", {}),
        (errors.TurnConflict("used before"), 409, "turn_conflict", {}),
        (errors.SessionBusy("t9"), 409, "session_busy", {"turn": "t9"}),
        (errors.CredentialsNotKept("no key"), 409, "credentials_not_kept", {}),
        (errors.InputTooLarge("input above 10 bytes"), 413, "input_too_large", {}),
        (errors.Draining("going"), 503, "draining", {}),
        (errors.JournalUnavailable("a socket"), 503, "journal_unavailable", {}),
    ],
)
async def test_an_error_of_the_gateway_is_a_problem_of_its_own(
    stage: Stage, error: errors.LegatoError, status: int, code: str, more: dict[str, str]
) -> None:
    stage.gateway.error = error
    answer = await ask(stage, "GET", EVENTS)
    problem = refused(answer, status, code, more.get("path"))
    assert more.items() <= problem.items()
    assert (answer.headers.get("Retry-After") is not None) == (status == 503)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("secret"), "internal"), (errors.JournalRejected("secret"), "journal_rejected")],
)
async def test_an_error_nobody_foresaw_is_logged_once_and_says_nothing_of_itself(
    stage: Stage, error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.gateway.error = error
    answer = await ask(stage, "GET", EVENTS)
    assert "secret" not in refused(answer, 500, code)["detail"]
    assert [record.getMessage() for record in caplog.records] == [f"GET '{EVENTS}' failed"]


async def test_an_error_of_the_journal_keeps_its_words_to_the_log(stage: Stage) -> None:
    stage.gateway.error = errors.JournalUnavailable("secret")
    assert "secret" not in refused(await ask(stage, "GET", EVENTS), 503, "journal_unavailable")["detail"]


async def test_an_error_in_mid_stream_ends_it_after_what_was_sent(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.gateway.stream = ScriptedStream([b"one", RuntimeError("broken"), b"two"])
    assert await frames(await ask(stage, "GET", EVENTS)) == [b"one"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("target", ["/health", "/nowhere", EVENTS, "/v1/sessions"])
async def test_every_answer_is_open_to_a_listed_origin_and_names_its_instance(stage: Stage, target: str) -> None:
    answer = await ask(stage, "GET", target, origin="https://app.example.com", authorization="Bearer dev:ann")
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert "Legato-Stream" in answer.headers["Access-Control-Expose-Headers"]
    assert answer.headers["Legato-Instance"] == "i1"


class Given:
    """A verifier that gives this, or raises it."""

    def __init__(self, given: str | Exception) -> None:
        self._given = given

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        if isinstance(self._given, Exception):
            raise self._given
        return Principal(self._given)

    async def stands(self, principal: Principal) -> bool:
        return True


@pytest.mark.parametrize(
    "uid", ["", ".", "..", "__ann__", "a/b", "a\0", "a\nb", "a\u2028", "\x85", "\ud800", "a" * 129, "a/../bob"]
)
async def test_a_caller_under_whose_id_nothing_can_be_kept_is_turned_away(stage: Stage, uid: str) -> None:
    stage.verifier = Given(uid)
    refused(await ask(stage, "GET", EVENTS), 401, "unauthorized")
    assert not stage.gateway.calls


@pytest.mark.parametrize("uid", ["a" * 128, "😀" * 128, "...", "__ann", "a%2Fb", "auth0|a b@c.d:é#?'"])
async def test_a_caller_of_any_other_id_is_let_in(stage: Stage, uid: str) -> None:
    stage.verifier = Given(uid)
    assert (await ask(stage, "GET", "/v1/sessions")).status == 200


async def test_what_a_broken_verifier_says_is_neither_told_nor_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.verifier = Given(ValueError("secret"))
    answer = await ask(stage, "GET", EVENTS)
    assert "secret" not in refused(answer, 500, "internal")["detail"]
    assert "secret" not in caplog.text
    assert "ValueError in " in caplog.text


async def test_no_token_reaches_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stage.gateway.error = RuntimeError("broken")
    for header in ("Bearer dev:secret", "Bearer secret", "secret"):
        await ask(stage, "GET", EVENTS, authorization=header)
    assert "secret" not in caplog.text


class Broken:
    """A verifier of a team's own, whose library quotes the token when it fails."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        raise self._kind(headers["authorization"])

    async def stands(self, principal: Principal) -> bool:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
async def test_a_verifier_that_fails_is_500_and_logs_nothing_of_the_token(
    stage: Stage, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    stage.verifier = Broken(kind)
    refused(await asyncio.create_task(ask(stage, "GET", EVENTS)), 500, "internal")
    assert kind.__name__ in caplog.text
    assert "dev:ann" not in caplog.text
