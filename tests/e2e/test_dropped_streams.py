"""A thousand streams that are opened and dropped leave nothing open, on either face."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from conftest import Place
from e2e.following import eventually
from harness import Face, Server

AT_ONCE = 50


@pytest.fixture
def place(sqlite_url: str, face: Face, tmp_path: Path) -> Place:
    return Place(sqlite_url, face, tmp_path)


def held(server: Server) -> dict[str, int]:
    """What the server's worker has open: descriptors and threads."""
    (pid,) = server.workers()
    return {kind: len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("fd", "task")}


async def open_and_drop(server: Server, count: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        """Half of them follow the session, half the turn."""
        turn = {"turn": "t"} if number % 2 else {}
        async with room:
            await eventually(lambda: opened(server, turn))

    await asyncio.gather(*(one(number) for number in range(count)))


async def opened(server: Server, turn: dict[str, str]) -> bool:
    """False when there is no room yet: a thread finds out at its next ping that a client has left."""
    async with server.caller().events("s", **{"from": "start"}, **turn) as answer:
        if answer.status == 503:
            return False
        await answer.until("turn.started")
        return True


async def test_a_thousand_streams_opened_and_dropped_leave_descriptors_and_threads_at_base(place: Place) -> None:
    async with place.server(THREADS="40", LEGATO_PING="0.3") as server:
        await server.caller().begin("s", "/say 100000 5", "t")
        await open_and_drop(server, 4 * AT_ONCE)  # by now there are all threads that there will be
        await eventually(lambda: rests(server))
        base = held(server)
        await open_and_drop(server, 1000)

        async def at_base() -> bool:
            return all(held(server)[kind] <= base[kind] for kind in base)

        await eventually(at_base)


async def rests(server: Server) -> bool:
    """Nobody is connected any more: the same is open as a second ago."""
    before = held(server)
    await asyncio.sleep(1)
    return held(server) == before
