"""Tokens that end while a turn goes on, over two instances: no event is lost or repeated, and no token outlived."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from conftest import Place
from e2e.conftest import journal_at, two
from e2e.duo import ENV, FIRESTORE, Duo, Where, on_both_faces
from e2e.following import eventually, journaled
from harness import Caller, Server
from legato.client import LegatoClient
from legato.sse import Message

SECONDS = 5
LONG = "/say 250 10\n/sleep 10\n/say 250 10"
"""A minute: ten silent seconds, in which nothing but the token's end is there to be told, between 25 with words."""


def ends_in(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


def until(server: Server, expires_at: int, name: str = "ann") -> Caller:
    """Whose token ends then."""
    return server.caller(f"{name}:{expires_at}")


async def bring(server: Server, session: str, stream: str, expires_at: int, name: str = "ann") -> int:
    path = f"/v1/sessions/{session}/auth"
    return (await until(server, expires_at, name).request("POST", path, {"stream": stream})).status_code


@on_both_faces
async def test_a_token_brought_to_the_other_instance_prolongs_a_stream_and_nobody_else_does(
    duo: Duo, session: str
) -> None:
    await duo.a.caller().begin(session, "/say 80 10", "t")
    first = ends_in(SECONDS)
    async with until(duo.a, first).events(session, turn="t", **{"from": "start"}) as answer:
        await answer.until("auth.expiring")
        stream = answer.headers["legato-stream"]
        assert json.loads(answer.messages[-1].data) == {"expires_at": first}
        assert await bring(duo.b, session, stream, ends_in(60)) == 204
        assert await bring(duo.b, session, stream, ends_in(60), "bob") == 404
        assert await bring(duo.b, f"{session}-2", stream, ends_in(60)) == 404
        assert await bring(duo.b, session, stream, ends_in(1)) == 204
        await answer.rest()
    assert ends_in(0) > first
    assert (answer.messages[-1].event, answer.broken) == ("turn.completed", False)
    assert journaled(answer.messages) == await duo.replay(session, "t")
    assert await bring(duo.b, session, stream, ends_in(60)) == 404


class Alternating(httpx.AsyncHTTPTransport):
    """Each request goes to the other instance than the one before it. `paths` is what was asked for."""

    def __init__(self, duo: Duo) -> None:
        super().__init__(verify=False)
        self.paths: list[str] = []
        self._ports = cycle((duo.a.port, duo.b.port))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        request.url = request.url.copy_with(port=next(self._ports))
        return await super().handle_async_request(request)


async def refreshing(duo: Duo, session: str) -> list[int]:
    """A client that brings fresh tokens reads the turn by few streams."""
    hops = Alternating(duo)

    async def token(_: bool) -> str:
        return f"dev:ann:{ends_in(SECONDS)}"

    async with (
        httpx.AsyncClient(transport=hops) as http,
        LegatoClient(duo.a.url, token, http=http) as client,
        client.turn(session, LONG, turn="t") as run,
    ):
        told = [update.event.seq async for update in run if update.event]
    assert run.status == "completed"
    assert sum(path.endswith("/auth") for path in hops.paths) > 10
    assert sum(path.endswith("/events") for path in hops.paths) < 8
    return told


async def returning(duo: Duo, session: str) -> list[Message]:
    """A client that brings none: each of its streams closes before its token ends, and it comes back with another."""
    told: list[Message] = []
    for server in cycle((duo.b, duo.a)):
        cursor = next((message.id for message in reversed(told) if message.id), None)
        expires_at = ends_in(SECONDS)
        origin = {} if cursor else {"from": "start"}
        async with until(server, expires_at).events(session, cursor, turn="t", **origin) as answer:
            told += await answer.rest()
        if told[-1].event == "turn.completed":
            return told
        assert ends_in(-1) < expires_at  # a second for its way
        assert json.loads(told[-1].data) == {"reason": "auth", "retry_ms": 0}
    raise AssertionError


@pytest.fixture
def duos(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Duo]]:
    """One for each journal, under one face each."""
    with ExitStack() as stack:
        made = []
        for where in (Where("sqlite", "flask"), FIRESTORE):
            directory = tmp_path / where.store
            directory.mkdir()
            place = Place(journal_at(where, directory, request), where.face, directory)
            made.append(stack.enter_context(two(place, ENV)))
        yield made


async def lived_through(duo: Duo, session: str) -> None:
    starting = asyncio.create_task(refreshing(duo, session))

    async def begun() -> bool:
        return (await duo.a.caller().snapshot(session)).is_success

    await eventually(begun)
    returned = await returning(duo, session)
    whole = await duo.replay(session, "t")
    assert journaled(returned) == whole
    assert await starting == list(range(1, len(whole) + 1))
    assert not any("dev:ann" in server.output() for server in (duo.a, duo.b))


@pytest.mark.emulator
async def test_tokens_of_five_seconds_under_a_turn_of_a_minute_lose_nothing(duos: list[Duo], session: str) -> None:
    """With and without fresh ones, on both journals and under both faces, side by side."""
    await asyncio.gather(*(lived_through(duo, session) for duo in duos))
