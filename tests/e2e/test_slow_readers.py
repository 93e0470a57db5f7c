"""Clients that do not read, over real sockets: the one that started the turn stops its model, in bounds; the others only
wait for themselves, and none of them costs much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from conftest import Place
from e2e.following import eventually, journaled
from harness import Answer, Face, Server, Stuck
from legato.sse import Message

ROUNDS = 30
SCRIPT = "\n".join('/say 1\n/tool big {"bytes": 400000}' for _ in range(ROUNDS))
"""A word, and then more than the model may be ahead: the sockets on the way take some ten of them."""


@pytest.fixture
def place(sqlite_url: str, face: Face, tmp_path: Path) -> Place:
    return Place(sqlite_url, face, tmp_path)


class Watching:
    """Counts the words of a turn as another reader sees them."""

    def __init__(self, server: Server) -> None:
        self.answer: Answer | None = None
        self._server = server
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> list[str]:
        await eventually(self._began)
        async with self._server.caller().events("s", turn="t", **{"from": "start"}) as self.answer:
            await self.answer.rest(60)
        return journaled(self.answer.messages)

    async def _began(self) -> bool:
        return (await self._server.caller().snapshot("s")).status_code == 200

    @property
    def words(self) -> int:
        return sum(message.event == "text.delta" for message in self.answer.messages) if self.answer else 0

    async def still(self) -> int:
        """The number of words once it has not risen for a second."""
        async with asyncio.timeout(30):
            while True:
                before = self.words
                await asyncio.sleep(1)
                if 0 < before == self.words:
                    return before

    async def end(self) -> list[str]:
        return await asyncio.wait_for(self._task, 60)


def start(server: Server) -> Stuck:
    return Stuck(server.url, "POST", "/v1/sessions/s/turns", {"input": SCRIPT, "turn": "t"})


async def test_the_word_counter_stands_still_while_the_starting_client_does_not_read_and_then_goes_on(
    place: Place,
) -> None:
    async with place.server() as server:
        with closing(start(server)) as stuck:
            watching = Watching(server)
            assert await watching.still() < ROUNDS
            told = await asyncio.to_thread(stuck.read_on)
        assert journaled(told) == await watching.end()
        assert told[-1].event == "turn.completed"
        assert watching.words == ROUNDS


async def test_a_starting_client_that_never_reads_is_left_behind_and_resumes_exactly(place: Place) -> None:
    async with place.server(LEGATO_HOLD_BACK_SECONDS="1") as server:
        with closing(start(server)) as stuck:
            watching = Watching(server)
            whole = await watching.end()
            told = await asyncio.to_thread(stuck.read_on)
        assert (told[-1].event, '"reason":"slow"' in told[-1].data) == ("stream.closing", True)
        async with server.caller().events("s", told[-2].id, turn="t") as answer:
            rest = await answer.rest(60)
        assert journaled([*told, *rest]) == whole
