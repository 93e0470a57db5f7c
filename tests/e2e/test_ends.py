"""The Commit of a turn's end fails, hangs or loses its answer: nobody is shown an end that is not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from grpc import StatusCode

from conftest import Place
from e2e.following import eventually, journaled, reduced
from e2e.outages import locked
from harness import Server
from journal.grpc_proxy import GrpcProxy
from legato.sse import Message
from legato.turn import restore

SCRIPT = "/say 5 20\n/sleep 1"
SAID = "w1 w2 w3 w4 w5 "
RETRIES = 1000
LEASE = {"LEGATO_LEASE": "1.5"}


class Trouble(NamedTuple):
    """What comes between one instance and its journal. While `ahead` lasts, nothing that it commits is stored."""

    place: Place
    env: Mapping[str, str]
    ahead: Callable[[], AbstractContextManager[None]]

    def owner(self, **env: str) -> Server:
        return self.place.server("owner", **self.env, **env)


@pytest.fixture
async def proxy(emulator: str) -> AsyncIterator[GrpcProxy]:
    async with GrpcProxy(emulator) as proxy:
        yield proxy


@contextmanager
def failing(proxy: GrpcProxy) -> Iterator[None]:
    for _ in range(RETRIES):
        proxy.refuse(StatusCode.UNAVAILABLE, "Commit")
    yield
    proxy.clear()


@contextmanager
def hanging(proxy: GrpcProxy) -> Iterator[None]:
    """What hangs goes on to the store afterwards, whether its caller still waits or not."""
    for _ in range(RETRIES):
        proxy.hold("Commit")
    yield
    proxy.clear()


def behind(proxy: GrpcProxy, project: str, directory: Path, ahead: AbstractContextManager[None]) -> Trouble:
    place = Place(f"firestore://{project}/(default)", "asgi", directory)
    return Trouble(place, {"FIRESTORE_EMULATOR_HOST": proxy.host}, lambda: ahead)


@pytest.fixture
def a_lock(sqlite_url: str, tmp_path: Path) -> Trouble:
    return Trouble(Place(sqlite_url, "asgi", tmp_path), {}, partial(locked, tmp_path / "journal.sqlite"))


@pytest.fixture
def failures(proxy: GrpcProxy, firestore_project: str, tmp_path: Path) -> Trouble:
    return behind(proxy, firestore_project, tmp_path, failing(proxy))


@pytest.fixture
def silence(proxy: GrpcProxy, firestore_project: str, tmp_path: Path) -> Trouble:
    return behind(proxy, firestore_project, tmp_path, hanging(proxy))


@pytest.fixture(
    params=[
        "a_lock",
        pytest.param("failures", marks=pytest.mark.emulator),
        pytest.param("silence", marks=pytest.mark.emulator),
    ]
)
def trouble(request: pytest.FixtureRequest) -> Trouble:
    chosen: Trouble = request.getfixturevalue(request.param)
    return chosen


async def looks(server: Server, cursor: str | None) -> list[str]:
    """What the snapshot and a long poll of two seconds show."""
    poll = f"/v1/sessions/s/events?turn=t&after={cursor}&wait=2"
    snapshot, news = await asyncio.gather(
        server.caller().snapshot("s"), server.caller().request("GET", poll, Accept="application/json")
    )
    return [snapshot.text, news.text]


async def test_nobody_is_shown_an_end_before_it_is_stored(trouble: Trouble) -> None:
    """Not by the owner's stream, snapshot or long poll, nor by another instance's; then everybody is."""
    async with (
        trouble.owner() as owner,
        trouble.place.server("other") as other,
        owner.caller().start("s", SCRIPT, "t") as near,
        other.caller().events("s", turn="t", **{"from": "start"}) as far,
    ):
        await near.until(lambda _: near.text == SAID)
        with trouble.ahead():
            ends = [asyncio.create_task(answer.until("turn.completed", timeout=60)) for answer in (near, far)]
            shown = await asyncio.gather(looks(owner, near.cursor), looks(other, near.cursor))
            assert "completed" not in "".join(map("".join, shown))
            assert not any(end.done() for end in ends)
        await asyncio.gather(*ends)
        assert journaled(near.messages) == journaled(far.messages)
        for server in (owner, other):
            (turn,) = (await server.caller().snapshot("s")).json()["turns"]
            assert (turn["status"], turn["output"]) == ("completed", SAID)


async def resumed(other: Server, seen: list[Message]) -> None:
    """A client that goes on after the owner's death is told the end that another instance stored, and no other."""
    async with other.caller().events("s", seen[-1].id, turn="t") as far:
        state = reduced("s", [*seen, *await far.rest()])
    snapshot = (await other.caller().snapshot("s")).json()
    for turn in (state.turns[0], restore(snapshot).turns[0]):
        assert (turn.status, turn.output, turn.partial) == ("completed", SAID, None)


async def tried(owner: Server) -> bool:
    """Its last attempt to write had no answer; SQLite waits 5 s for one, and the turn is through long before."""
    return "the journal does not answer, trying again" in owner.output()


@pytest.mark.parametrize("trouble", ["a_lock", pytest.param("failures", marks=pytest.mark.emulator)], indirect=True)
async def test_an_end_that_its_owner_could_not_store_dies_with_it_and_another_stores_its_own(trouble: Trouble) -> None:
    async with trouble.owner(**LEASE) as owner, trouble.place.server("other", **LEASE) as other:
        async with owner.caller().start("s", SCRIPT, "t") as near:
            await near.until(lambda _: near.text == SAID)
            with trouble.ahead():
                await eventually(lambda: tried(owner))
                owner.kill9()
        await resumed(other, near.messages)


@pytest.mark.emulator
async def test_an_end_that_reaches_the_store_after_its_turn_was_taken_over_is_refused(
    proxy: GrpcProxy, silence: Trouble
) -> None:
    async with silence.owner(**LEASE) as owner, silence.place.server("other", **LEASE) as other:
        async with owner.caller().start("s", SCRIPT, "t") as near:
            await near.until(lambda _: near.text == SAID)
            end = proxy.hold("Commit")
            await asyncio.wait_for(end.arrived.wait(), 30)
            owner.kill9()
        await resumed(other, near.messages)
        end.release()
        await asyncio.wait_for(end.answered.wait(), 30)
        await resumed(other, near.messages)


@pytest.mark.emulator
async def test_an_end_whose_answer_is_lost_is_shown_once(
    proxy: GrpcProxy, firestore_project: str, tmp_path: Path
) -> None:
    place = Place(f"firestore://{firestore_project}/(default)", "asgi", tmp_path)
    async with (
        place.server("owner", FIRESTORE_EMULATOR_HOST=proxy.host) as owner,
        place.server("other") as other,
        owner.caller().start("s", SCRIPT, "t") as near,
    ):
        await near.until(lambda _: near.text == SAID)
        lost = [proxy.lose(StatusCode.UNAVAILABLE, "Commit") for _ in range(2)]
        await near.rest()
        async with other.caller().events("s", turn="t", **{"from": "start"}) as far:
            await far.rest()
    assert all(loss.arrived.is_set() for loss in lost)
    assert journaled(near.messages) == journaled(far.messages)
    assert [message.event for message in near.messages].count("turn.completed") == 1
