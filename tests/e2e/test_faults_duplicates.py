"""Nobody is sent an event twice, or one of another turn, however and whenever they attach."""

from __future__ import annotations

import asyncio
import random

import pytest

from e2e.duo import Duo, exactly, on_both_faces
from e2e.following import journaled, seq
from harness import Answer
from legato.events import Record

START = {"from": "start"}


async def test_two_who_ask_at_once_with_one_cursor_get_the_same_rest(duo: Duo, session: str) -> None:
    asked: list[tuple[int, asyncio.Task[Answer]]] = []
    async with duo.a.caller().start(session, "/say 60 60", "t") as first:
        for k in range(2, 62, 6):
            await first.until(lambda message: seq(message.data) == k)  # noqa: B023
            rests = [duo.rest(server, session, first.cursor, turn="t") for server in duo[:2] * 2]
            asked += [(k, asyncio.create_task(rest)) for rest in rests]
        await first.rest()
    for k, task in asked:
        exactly(await task, k, journaled(first.messages))


class Attachment:
    """One reader that comes at a moment and from a position of chance."""

    def __init__(self, duo: Duo, session: str, seen: Answer, chance: random.Random, lasts: float) -> None:
        self.asked: int | None = None
        self._duo, self._session, self._seen = duo, session, seen
        self._server = chance.choice((duo.a, duo.b))
        self._moment, self._how = chance.uniform(0, lasts), chance.random()

    async def __call__(self) -> Answer:
        await asyncio.sleep(self._moment)
        shown = [message.id for message in self._seen.messages]
        if self._how < 0.2:
            return await self._duo.rest(self._server, self._session, turn="t")
        if self._how < 0.4 or not shown:
            self.asked = 0
            return await self._duo.rest(self._server, self._session, turn="t", **START)
        after = shown[-1] if self._how < 0.7 else shown[int(len(shown) * (self._how - 0.7) / 0.3)]
        assert after
        self.asked = int(after.split("-")[1])
        return await self._duo.rest(self._server, self._session, after, turn="t")


@on_both_faces
@pytest.mark.parametrize("batch", range(2))
async def test_two_hundred_and_fifty_who_attach_at_random_moments_get_every_event_once(
    duo: Duo, session: str, batch: int
) -> None:
    chance = random.Random(batch)

    async def one(number: int) -> None:
        name = f"{session}-{number}"
        async with duo.a.caller().start(name, "/say 80 50", "t") as seen:
            readers = [Attachment(duo, name, seen, chance, 1.8) for _ in range(50)]
            answers = asyncio.gather(*(reader() for reader in readers))
            await seen.rest(60)
        whole = await duo.replay(name, "t")
        assert journaled(seen.messages) == whole
        for reader, answer in zip(readers, await answers, strict=True):
            exactly(answer, reader.asked or 0, whole)
            assert (reader.asked is None) == any(message.event == "snapshot" for message in answer.messages)

    await asyncio.gather(*(one(number) for number in range(5)))


async def test_three_drops_in_a_row_resume_with_rising_cursors(duo: Duo, session: str) -> None:
    cursors, told = [], []
    async with duo.a.caller().start(session, "/say 40 60", "t") as answer:
        told += await answer.until(lambda message: seq(message.data) == 5)
        cursors.append(seq(told[-1].data))
    for server, k in ((duo.b, 9), (duo.a, 10), (duo.b, 42)):
        async with server.caller().events(session, told[-1].id, turn="t") as answer:
            told += await answer.until(lambda message: seq(message.data) == k)  # noqa: B023
            cursors.append(seq(told[-1].data))
    assert cursors == [5, 9, 10, 42]
    assert journaled(told) == await duo.replay(session, "t")


async def test_a_resume_of_a_turn_shows_nothing_of_the_one_before_it(duo: Duo, session: str) -> None:
    async with duo.a.caller().start(session, "/say 5", "one") as one:
        await one.rest()
    async with duo.a.caller().start(session, "/say 40 40", "two") as two:
        await two.until("text.delta")
        asked = [after for after in (one.cursor, two.cursor) for _ in range(2) if after]
        rests = [duo.rest(server, session, after, turn="two") for server, after in zip(duo[:2] * 2, asked, strict=True)]
        again = [duo.rest(server, session, turn="two", **START) for server in duo[:2]]
        answers = await asyncio.gather(*rests, *again)
        await two.rest()
    for answer, after in zip(answers, [*asked, "0-0", "0-0"], strict=True):
        exactly(answer, int(after.split("-")[1]), journaled(two.messages))
        assert {Record.of(data).turn for data in journaled(answer.messages)} == {"two"}


async def test_a_resume_of_a_turn_shows_nothing_of_the_one_after_it(duo: Duo, session: str) -> None:
    async with duo.a.caller().start(session, "/say 5", "one") as one:
        await one.rest()
    async with duo.a.caller().start(session, "/say 30 40", "two") as two:
        await two.until("text.delta")
        for server in duo[:2]:
            exactly(await duo.rest(server, session, one.messages[1].id, turn="one"), 2, journaled(one.messages))
            assert (await duo.rest(server, session, one.cursor, turn="one")).status == 204
