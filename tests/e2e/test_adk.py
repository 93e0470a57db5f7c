"""The session of an agent of ADK is in the journal: it is there on any instance, in either store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conftest import Place
from e2e.following import AGENTS
from harness import Server, gemini_at
from local_gemini import LocalGemini


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def place(place: Place) -> AsyncIterator[Place]:
    async with LocalGemini() as gemini:
        yield place._replace(env={**AGENTS, "LEGATO_AGENT": "adks:agent", **gemini_at(gemini.url)})


async def spent(server: Server, turn: str, amount: int) -> int:
    """What a turn's tool finds in the session, with what it adds to it."""
    async with server.caller().start("s", f'/tool remember {{"amount": {amount}}}\n/say 1', turn) as answer:
        await answer.rest()
    turns = (await server.caller().snapshot("s")).json()["turns"]
    return int(turns[-1]["tools"][0]["content"])


async def test_state_is_there_in_the_next_turn_on_another_instance(pair: tuple[Server, Server]) -> None:
    assert await spent(pair[0], "t1", 3) == 3
    assert await spent(pair[1], "t2", 4) == 7
    pair[0].kill9()
    assert await spent(pair[1], "t3", 1) == 8
