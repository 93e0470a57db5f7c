"""One server for each face, as functions-framework runs it. All of these tests share it, with sessions of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from harness import Answer, Caller, Server


@pytest.fixture(scope="session", params=["asgi", "flask"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp(request.param)
    env = {"LEGATO_ORIGINS": "https://app.example.com https://shop--*.web.app"}
    server = Server(f"sqlite:///{directory}/journal.sqlite", directory / "log", request.param, env)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.__aexit__())


@pytest.fixture
def ann(served: Server) -> Caller:
    return served.caller("ann")


@pytest.fixture
def session() -> str:
    """A session that nobody has used."""
    return f"s-{uuid4().hex[:12]}"


@pytest.fixture
async def told(ann: Caller, session: str) -> Answer:
    """A turn `t1` of that session, streamed to its end."""
    async with ann.start(session, "/say 3", turn="t1") as answer:
        await answer.rest()
    return answer
