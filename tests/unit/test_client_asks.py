"""The client's small requests: one question, one answer or one error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_play import FINAL, TURN, Clockwork, client_of, looked
from legato.client import FileStore, LegatoClient, RequestRefused
from legato.client.store import Saved
from legato.errors import AlreadyDecided, Invalid, NotFound, TurnGone
from legato.turn import SessionState
from scripted_server import NO_CONTENT, Answer, dropped, json_answer, problem, serving


async def test_the_small_requests_say_what_the_contract_says(tmp_path: Path) -> None:
    script = [looked(TURN), json_answer({}, 202), NO_CONTENT]
    store = FileStore(tmp_path)
    store.save("s_1", Saved(FINAL))
    async with serving(*script) as server, client_of(server, store=store) as client:
        assert await client.snapshot("s_1") == FINAL
        await client.cancel("s_1", "t_1", "enough")
        await client.delete("s_1")
    assert [(request.method, request.path) for request in server.requests] == [
        ("GET", "/v1/sessions/s_1"),
        ("POST", "/v1/sessions/s_1/turns/t_1/cancel"),
        ("DELETE", "/v1/sessions/s_1"),
    ]
    assert server.requests[1].body == {"reason": "enough"}
    assert store.load("s_1") is None
    assert client.follow("s_1").state == SessionState("s_1")


async def test_sessions_are_listed_page_after_page() -> None:
    pages = [{"sessions": [{"session": "b"}], "before": "7-b"}, {"sessions": [{"session": "a"}], "before": None}]
    async with serving(*map(json_answer, pages)) as server, client_of(server) as client:
        assert [listed["session"] async for listed in client.sessions()] == ["b", "a"]
    assert [(request.path, request.query) for request in server.requests] == [
        ("/v1/sessions", {}),
        ("/v1/sessions", {"before": "7-b"}),
    ]


@pytest.mark.parametrize("ask", [lambda c: c.snapshot("s_1"), lambda c: c.cancel("s_1", "t_1")])
async def test_a_small_request_refreshes_its_token_once_and_raises_what_it_is_refused_for(
    ask: Callable[[LegatoClient], Awaitable[Any]],
) -> None:
    async with serving(problem(401, "unauthorized"), problem(404, "not_found")) as server, client_of(server) as client:
        with pytest.raises(NotFound, match="because of not_found"):
            await ask(client)
    assert len(server.requests) == 2


DECIDED = "/v1/sessions/s_1/turns/t_1/approvals/1-1-1"


async def test_a_decision_is_sent_with_its_note_if_there_is_one() -> None:
    async with serving(json_answer({}, 202), json_answer({})) as server, client_of(server) as client:
        await client.decide("s_1", "t_1", "1-1-1", True)
        await client.decide("s_1", "t_1", "1-1-1", False, "too much")
    assert [(request.method, request.path) for request in server.requests] == [("POST", DECIDED)] * 2
    assert [request.body for request in server.requests] == [
        {"approved": True},
        {"approved": False, "note": "too much"},
    ]


async def test_a_credential_is_sent_with_its_time_if_there_is_one() -> None:
    async with serving(json_answer({}, 202), json_answer({})) as server, client_of(server) as client:
        await client.supply("s_1", "t_1", "mail", "s3cret")
        await client.supply("s_1", "t_1", "mail", "s3cret", 60)
    assert {request.path for request in server.requests} == {"/v1/sessions/s_1/turns/t_1/credentials/mail"}
    assert [request.body for request in server.requests] == [{"value": "s3cret"}, {"value": "s3cret", "expires_in": 60}]


async def test_decisions_and_cancels_are_repeated_while_the_network_or_a_passing_refusal_is_in_the_way() -> None:
    time = Clockwork()
    script = [dropped, problem(503, "draining", retry_after=7), problem(502, "http"), json_answer({}, 202)]
    async with serving(*script, *script) as server, client_of(server, time) as client:
        await client.decide("s_1", "t_1", "1-1-1", True)
        assert time.slept == [1, 7, 4]
        await client.cancel("s_1", "t_1")
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["1-1-1"] * 4 + ["cancel"] * 4


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "already_decided", AlreadyDecided),
        (404, "not_found", NotFound),
        (410, "turn_gone", TurnGone),
        (403, "forbidden", RequestRefused),
    ],
)
async def test_a_decision_refused_for_good_is_an_error_and_not_sent_again(
    status: int, code: str, kind: type[Exception]
) -> None:
    async with serving(problem(status, code)) as server, client_of(server) as client:
        with pytest.raises(kind):
            await client.decide("s_1", "t_1", "1-1-1", True)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("lost", "kind"), [(dropped, httpx.RequestError), (problem(503, "draining"), RequestRefused)])
async def test_a_decision_that_cannot_be_sent_for_five_minutes_is_an_error(lost: Answer, kind: type[Exception]) -> None:
    time = Clockwork()
    async with serving(*[lost] * 20) as server, client_of(server, time) as client:
        with pytest.raises(kind):
            await client.decide("s_1", "t_1", "1-1-1", True)
    assert 300 <= time.now < 331


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "é", "x" * 65, "a\n"])
async def test_an_id_that_can_be_none_is_refused_before_anything_is_sent(name: str) -> None:
    async with serving() as server, client_of(server) as client:
        with pytest.raises(Invalid, match="is no id"):
            client.turn(name, "hi")
        with pytest.raises(Invalid, match="is no id"):
            client.turn("s_1", "hi", turn=name or "/")
        with pytest.raises(Invalid, match="is no id"):
            client.follow(name)
        with pytest.raises(Invalid, match="is no id"):
            await client.decide("s_1", "t_1", name, True)
        with pytest.raises(Invalid, match="is no id"):
            await client.supply("s_1", "t_1", name, "s3cret")
    assert server.requests == []
