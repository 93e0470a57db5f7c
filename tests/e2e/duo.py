"""Two instances over one journal, and what tests of many clients ask of them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from conftest import Place
from e2e.following import AGENTS, journaled, seq
from harness import Answer, Face, Server
from legato.sse import Message

ENV = {**AGENTS, "LEGATO_AGENT": "speakers:agents", "LEGATO_PING": "0.3"}


class Where(NamedTuple):
    store: str
    face: Face


SQLITE, FIRESTORE = Where("sqlite", "asgi"), Where("firestore", "asgi")
HERE = [
    pytest.param(SQLITE, id="sqlite"),
    pytest.param(FIRESTORE, id="firestore", marks=pytest.mark.emulator),
]
on_both_faces = pytest.mark.parametrize(
    "duo", [*HERE, pytest.param(Where("sqlite", "flask"), id="sqlite-flask")], indirect=True
)


class Duo(NamedTuple):
    a: Server
    b: Server
    place: Place

    async def rest(self, server: Server, session: str, after: str | None = None, **params: str) -> Answer:
        """The whole answer of a GET from a cursor."""
        async with server.caller().events(session, after, **params) as answer:
            await answer.rest(60)
        return answer

    async def replay(self, session: str, turn: str) -> list[str]:
        """The turn's events as its journal has them."""
        return journaled((await self.rest(self.b, session, turn=turn, **{"from": "start"})).messages)

    async def session_events(self, session: str) -> list[str]:
        """All of the session's events, of a session at rest."""
        head = (await self.b.caller().snapshot(session)).json()["cursor"]
        async with self.b.caller().events(session, **{"from": "start"}) as answer:
            return journaled(await answer.until(lambda message: message.id == head, 60))


def position(messages: list[Message], asked: int) -> int:
    """The seq after which a reader's events must go on: where it asked, or where a snapshot put it instead."""
    snapshots = [message for message in messages if message.event == "snapshot"]
    return int(snapshots[-1].id.split("-")[1]) if snapshots and snapshots[-1].id else asked


def exactly(answer: Answer, asked: int, whole: list[str]) -> None:
    """The answer is what follows `asked`, or its snapshot, in the turn `whole`: nothing missing, nothing twice."""
    at = position(answer.messages, asked)
    assert journaled(answer.messages) == [data for data in whole if seq(data) > at]
    assert not answer.broken
