"""Agents that teams write themselves, or have already, are served like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from conftest import Place
from e2e.following import AGENTS, eventually, journaled
from harness import Server

KINDS = ("hand-written", "generator", "sync-generator")
SAID = "".join(f"w{number} " for number in range(1, 41))
ENDLESS = SAID * 100


@pytest.fixture
def journal_url(sqlite_url: str) -> str:
    """What an agent says does not depend on the store."""
    return sqlite_url


@pytest.fixture
async def servers(place: Place) -> AsyncIterator[tuple[Server, Server]]:
    env = {**AGENTS, "LEGATO_AGENT": "agents:kinds"}
    async with place.server("a", **env) as owner, place.server("b", **env) as other:
        yield owner, other


async def marks(place: Place, wanted: int) -> None:
    await eventually(lambda: left(place, wanted))


async def left(place: Place, wanted: int) -> bool:
    return place.ledger.exists() and len(place.ledger.read_text().splitlines()) == wanted


async def resumed(kind: str, owner: Server, other: Server) -> None:
    """A client reads half of the turn from its owner and half from another instance."""
    async with owner.caller().start(kind, SAID, "t", agent=kind) as first:
        await first.until(lambda message: '"w20 "' in message.data)
    async with other.caller().events(kind, first.cursor, turn="t") as second:
        await second.rest()
    async with owner.caller().events(kind, turn="t", **{"from": "start"}) as whole:
        await whole.rest()
    assert journaled(first.messages) + journaled(second.messages) == journaled(whole.messages)
    assert first.text + second.text == SAID
    assert second.messages[-1].event == "turn.completed"


async def cancelled(kind: str, owner: Server, other: Server) -> None:
    """Through the other instance, in the middle of its first words."""
    async with owner.caller().start(kind, ENDLESS, "t", agent=kind) as stream:
        await stream.until("text.delta")
        assert (await other.caller().cancel(kind, "t", "enough")).status_code == 202
        await stream.rest()
    assert stream.messages[-1].event == "turn.interrupted"
    (turn,) = (await other.caller().snapshot(kind)).json()["turns"]
    assert (turn["status"], turn["partial"]) == ("interrupted", stream.text)
    assert ENDLESS.startswith(stream.text)


async def test_a_turn_of_any_kind_of_agent_is_resumed_on_another_instance(
    servers: tuple[Server, Server], place: Place
) -> None:
    await asyncio.gather(*(resumed(kind, *servers) for kind in KINDS))
    await marks(place, len(KINDS))


async def test_a_turn_of_any_kind_of_agent_is_cancelled_and_its_generator_closed(
    servers: tuple[Server, Server], place: Place
) -> None:
    await asyncio.gather(*(cancelled(kind, *servers) for kind in KINDS))
    await marks(place, len(KINDS) - 1)
