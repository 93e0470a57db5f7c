"""The journal goes away in the middle of a turn, and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import Place
from e2e.following import journaled
from e2e.outages import Store, refused, sqlite_store, swallowed
from harness import Answer, Server, TcpProxy

PING = 8
SILENCE = PING + 7
"""What a stream may be silent for on a machine with other things to do."""
PENDING, FLUSH = 5, 0.5
LONG = 60
SHORT = 6
SCRIPT = '/say 100 10\n/tool transfer {"amount": 1}\n/say 5 20'
DUE = '/say 20 10\n/tool transfer {"amount": 1}\n/say 5 20'


@pytest.fixture
async def proxy(emulator: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(int(emulator.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def swallowing(firestore_project: str, proxy: TcpProxy) -> Store:
    return swallowed(firestore_project, proxy)


@pytest.fixture
def refusing(firestore_project: str, proxy: TcpProxy) -> Store:
    return refused(firestore_project, proxy)


@pytest.fixture
def locking(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path)


@pytest.fixture(
    params=[
        "locking",
        pytest.param("swallowing", marks=pytest.mark.emulator),
        pytest.param("refusing", marks=pytest.mark.emulator),
    ]
)
def store(request: pytest.FixtureRequest) -> Store:
    chosen: Store = request.getfixturevalue(request.param)
    return chosen


def now() -> int:
    return time.time_ns() // 1_000_000


def serve(store: Store, directory: Path, **env: str) -> tuple[Place, Server]:
    """An instance over `store`, with a ledger of its own."""
    directory.mkdir(exist_ok=True)
    place = Place(store.url, "asgi", directory)
    return place, place.server("a", **store.env, **env)


def begun(server: Server, script: str) -> AbstractAsyncContextManager[Answer]:
    """Turn `t` as a stream that breaks when it is silent for longer than a stream may be."""
    body, accept = {"input": script, "turn": "t"}, {"Accept": "text/event-stream"}
    return server.caller().open("POST", "/v1/sessions/s/turns", body=body, headers=accept, timeout=SILENCE)


class Lived(NamedTuple):
    """What came of a turn whose journal was away from `gone` to `back` (ms), as its stream and the journal tell it."""

    gone: int
    back: int
    during: list[dict[str, Any]]
    answer: Answer
    stored: list[str]


async def outlived(store: Store, directory: Path, script: str, seconds: float, **env: str) -> Lived:
    """The turn is whole, its stream never broke, and its tool ran once, and not before the journal was back."""
    place, server = serve(store, directory, **env)
    async with server, begun(server, script) as answer:
        await answer.until("text.delta")
        reading = asyncio.create_task(answer.rest(timeout=seconds + 60))
        async with store.away():
            gone = now()
            await asyncio.sleep(seconds)
            during = answer.events
            assert not place.ledger.exists()
            back = now()
        await reading
        async with server.caller().events("s", turn="t", **{"from": "start"}) as whole:
            stored = journaled(await whole.rest())
    assert journaled(answer.messages) == stored
    assert [event["seq"] for event in answer.events] == list(range(1, len(stored) + 1))
    assert len(place.ledger.read_text().splitlines()) == 1
    return Lived(gone, back, during, answer, stored)


def words(number: int) -> str:
    return "".join(f"w{n} " for n in range(1, number + 1))


@pytest.mark.emulator
async def test_a_minute_without_its_journal_pauses_a_turn_and_costs_it_nothing(
    locking: Store, swallowing: Store, tmp_path: Path
) -> None:
    """With too much uncommitted no word is shown and the model waits; pings go on, and in the end the words do."""
    stores = {"sqlite": locking, "firestore": swallowing}
    for lived in await asyncio.gather(*(outlived(stores[name], tmp_path / name, SCRIPT, LONG) for name in stores)):
        shown = lived.during[-1]
        assert shown["type"] == "text.delta"
        assert lived.gone < shown["at"] < lived.gone + (PENDING + FLUSH) * 1000 + 1000
        assert all(event["at"] >= lived.back for event in lived.answer.events[len(lived.during) + 1 :])
        assert lived.answer.raw.count(b": ping") >= (LONG - PENDING) // PING - 2
        assert lived.answer.text == words(105)
        assert lived.answer.messages[-1].event == "turn.completed"


async def test_a_tool_that_is_due_while_the_journal_is_away_waits_for_it(store: Store, tmp_path: Path) -> None:
    """Also when the lease runs out meanwhile and nobody else takes the turn."""
    lived = await outlived(store, tmp_path / "a", DUE, SHORT, LEGATO_LEASE="2")
    assert "tool.call" not in [event["type"] for event in lived.during]
    assert lived.answer.text == words(25)
    assert lived.answer.messages[-1].event == "turn.completed"


@pytest.mark.parametrize("store", ["locking", pytest.param("swallowing", marks=pytest.mark.emulator)], indirect=True)
async def test_a_journal_that_is_away_at_the_start_is_503_until_it_is_there(store: Store, tmp_path: Path) -> None:
    """The request that failed is sent again and begins its turn, once."""
    _, server = serve(store, tmp_path / "a")
    async with server:
        caller = server.caller()
        async with store.away():
            answers = await asyncio.gather(caller.begin("s", DUE, "t"), caller.snapshot("s"))
            assert (await caller.request("GET", "/health")).status_code == 200
        for refusal in answers:
            assert (refusal.status_code, refusal.json()["code"]) == (503, "journal_unavailable")
            assert int(refusal.headers["retry-after"]) >= 1
        async with begun(server, DUE) as answer:
            await answer.rest()
        assert answer.text == words(25)
