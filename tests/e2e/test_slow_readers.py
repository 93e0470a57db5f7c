"""Clients that do not read, over real sockets: the one that started the turn stops its model, in bounds; the others
wait for themselves alone, and none of them costs much."""

from __future__ import annotations

import asyncio
import json
import os
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


def resident_mb(server: Server) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.workers())
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


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


def last(frame: Message) -> bool:
    return frame.event == "turn.completed" and '"turn":"t19"' in frame.data


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


async def test_readers_that_never_read_cost_bounded_memory_and_nobody_elses_time(place: Place) -> None:
    """Twenty of them and 20 MB: each keeps a piece and a part of the journal, not what was said. Nothing is lost."""
    async with place.server() as server, server.caller().start("s", "/say 1") as first:
        await first.rest()
        url = "/v1/sessions/s/events?from=start"
        with closing(Stuck(server.url, "GET", url)) as stuck, ExitStack() as readers:
            for _ in range(19):
                readers.enter_context(closing(Stuck(server.url, "GET", url)))
            before = resident_mb(server)
            for number in range(20):
                async with server.caller().start("s", '/tool big {"bytes": 1000000}', f"t{number}") as answer:
                    assert (await answer.rest())[-1].event == "turn.completed"
            grown = resident_mb(server) - before
            told = await asyncio.to_thread(stuck.read_on, last)
            assert [json.loads(data)["seq"] for data in journaled(told)] == list(range(1, 3 + 1 + 20 * 4))
    assert grown < 40
