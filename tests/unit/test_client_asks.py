"""The client's small requests: one question, one answer or one error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from client_play import FINAL, TURN, client_of, looked
from legato.client import FileStore, LegatoClient
from legato.client.store import Saved
from legato.errors import Invalid, NotFound
from legato.turn import SessionState
from scripted_server import NO_CONTENT, json_answer, problem, serving


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


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "é", "x" * 65, "a\n"])
async def test_an_id_that_can_be_none_is_refused_before_anything_is_sent(name: str) -> None:
    async with serving() as server, client_of(server) as client:
        with pytest.raises(Invalid, match="is no id"):
            client.turn(name, "hi")
        with pytest.raises(Invalid, match="is no id"):
            client.turn("s_1", "hi", turn=name or "/")
        with pytest.raises(Invalid, match="is no id"):
            client.follow(name)
    assert server.requests == []
