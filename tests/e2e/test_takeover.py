"""After the death of its owner a turn goes on elsewhere, soon after the lease has run out and whatever its length."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from conftest import Place
from harness import Answer, Face, Server
from legato import app
from legato.events import Record
from legato.journal import SessionKey
from legato.settings import Settings
from legato.sse import Message

LEASE = 2
ENV = {"LEGATO_LEASE": str(LEASE)}
SOON_MS = 1000


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> Face:
    """What happens to a turn does not depend on the face; the suites of the faces hold that."""
    chosen: Face = request.param
    return chosen


@asynccontextmanager
async def two(place: Place) -> AsyncIterator[tuple[Server, Server]]:
    async with place.server("a", **ENV) as owner, place.server("b", **ENV) as other:
        yield owner, other


async def lease_end(place: Place, session: str) -> int:
    """When the lease runs out, in ms."""
    journal = app.open_journal(Settings(journal=place.journal))
    try:
        lease = (await journal.standing(SessionKey("ann", session))).lease
        assert lease
        return lease.expires_at
    finally:
        await journal.close()


def of_epoch_2(message: Message) -> bool:
    return message.id is not None and message.event != "snapshot" and Record.of(message.data).epoch == 2


async def went_on(follower: Answer, event: str = "turn.resumed") -> int:
    """When the follower was given the next owner's first event of that type, in ms."""
    await follower.until(lambda message: of_epoch_2(message) and message.event == event, 60)
    return app.now()


async def test_another_instance_streams_the_next_event_within_lease_and_a_second_of_a_kill(place: Place) -> None:
    async with two(place) as (owner, other):
        await owner.caller().begin("s", "/say 400 20", "t")
        async with other.caller().events("s", turn="t", **{"from": "start"}) as follower:
            await follower.until("text.delta")
            owner.kill9()
            killed = app.now()
            assert await went_on(follower) - killed < 1000 * LEASE + SOON_MS
            await follower.until("text.delta")


EVENTS = 10_000
LONG = {
    "one long step": f'/say {EVENTS - 10}\n/tool lookup {{"key": "k"}}\n/say 400 20',
    "four hundred steps": '/say 23\n/tool lookup {"key": "k"}\n' * 400 + "/say 400 20",
}


@pytest.mark.parametrize("kind", LONG)
async def test_a_turn_of_10000_events_goes_on_within_a_second_of_its_lease(place: Place, kind: str) -> None:
    """Its agent says something new by then, behind all that was recorded."""
    async with two(place) as (owner, other):
        await owner.caller().begin("s", LONG[kind], "t")
        async with other.caller().events("s", turn="t", **{"from": "start"}) as follower:
            await follower.until(lambda message: bool(message.id) and Record.of(message.data).seq >= EVENTS, 120)
            owner.kill9()
            due = await lease_end(place, "s")
            assert await went_on(follower, "text.delta") - due < SOON_MS
