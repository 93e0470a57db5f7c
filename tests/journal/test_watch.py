"""The watch over a scripted Listen: what the server does to a target, and how the streams are filled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from legato.errors import JournalUnavailable
from legato.journal import firestore_wire as wire
from legato.journal.firestore_wire import Message
from legato.journal.wakeups import asked, news
from legato.journal.watch import DEAD, SILENT, Stream, Watch
from legato.journal.watch_targets import Aim, Change, Target

SESSION = "d/documents/users/ann/agent_sessions/s1"
FAR = 1 << 61


class Listening:
    """Firestore's end: `asked` are the requests of all streams, `say` answers on the newest one."""

    database = "d"

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.opened = 0
        self.news = asyncio.Event()
        self._answers: asyncio.Queue[Message | Exception] = asyncio.Queue()

    def name(self, path: str) -> str:
        return f"d/documents/{path}"

    async def listen(self, requests: AsyncIterator[Message]) -> AsyncGenerator[Message, None]:
        self.opened, self._answers = self.opened + 1, asyncio.Queue()
        reading = asyncio.create_task(self._read(requests))
        try:
            while True:
                answer = await self._answers.get()
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[Message]) -> None:
        async for request in requests:
            self.asked.append(request)
            self.news.set()

    async def until(self, count: int) -> Message:
        """The request of this number, from 1."""
        async with asyncio.timeout(5):
            while len(self.asked) < count:
                self.news.clear()
                await self.news.wait()
        return self.asked[count - 1]

    def say(self, kind: Any, *numbers: int) -> None:
        answer = wire.ListenResponse()
        answer.target_change.target_change_type = kind
        answer.target_change.target_ids.extend(numbers)
        self._answers.put_nowait(answer)

    def breaks(self, failure: Exception) -> None:
        self._answers.put_nowait(failure)


@pytest.fixture
def server() -> Listening:
    return Listening()


@pytest.fixture
async def stream(server: Listening) -> AsyncIterator[Stream]:
    made = Stream(server, lambda target, marks: None)  # type: ignore[arg-type]
    made.task = asyncio.create_task(made.run())
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])


async def on(stream: Stream, server: Listening) -> Target:
    """A target that the server has accepted."""
    target = Target(Aim(SESSION, "documents"))
    stream.add(target)
    server.say(Change.CURRENT, (await server.until(1)).add_target.target_id)
    await settled(lambda: target.current)
    return target


async def settled(condition: Any) -> None:
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def test_a_target_that_the_server_takes_off_is_added_again_ever_later(stream: Stream, server: Listening) -> None:
    """After one tick, then after two; once it is current, after one again."""
    target = await on(stream, server)
    for nth, ticks in ((2, 1), (3, 2)):
        server.say(Change.REMOVE, target.number)
        await settled(lambda: not target.number)
        for _ in range(ticks):
            assert not target.number
            stream.tick()
        assert (await server.until(nth)).add_target.target_id == target.number
    server.say(Change.CURRENT, target.number)
    await settled(lambda: target.current)
    server.say(Change.REMOVE, target.number)
    await settled(lambda: not target.number)
    stream.tick()
    await server.until(4)


async def test_a_silent_stream_is_probed_and_given_up_when_it_does_not_answer(
    stream: Stream, server: Listening
) -> None:
    target = await on(stream, server)
    for _ in range(SILENT):
        stream.tick()
    probe, removal = await server.until(2), await server.until(3)
    assert probe.add_target.documents.documents == ["d/documents/legato/check"]
    assert removal.remove_target == probe.add_target.target_id
    for _ in range(DEAD - SILENT):
        stream.tick()
    assert (await server.until(4)).add_target.target_id == target.number
    assert (server.opened, target.current) == (2, False)


async def test_a_stream_that_answers_its_probe_lives_on(stream: Stream, server: Listening) -> None:
    await on(stream, server)
    for _ in range(SILENT):
        stream.tick()
    server.say(Change.ADD, (await server.until(2)).add_target.target_id)
    await settled(lambda: stream._silence == 0)
    for _ in range(DEAD - 1):
        stream.tick()
    await asyncio.sleep(0.01)
    assert server.opened == 1


@pytest.mark.parametrize("failure", [JournalUnavailable("away"), ValueError("not understood"), TimeoutError()])
async def test_whatever_ends_a_stream_another_one_has_all_its_targets(
    stream: Stream, server: Listening, failure: Exception
) -> None:
    target = await on(stream, server)
    server.breaks(failure)
    assert (await server.until(2)).add_target.target_id == target.number
    assert server.opened == 2


async def test_a_stream_holds_so_many_targets_and_the_next_one_the_rest(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower takes two, an owner one."""
    monkeypatch.setattr("legato.journal.watch.TARGETS", 4)
    watch = Watch(server, tick=3600)  # type: ignore[arg-type]
    known = [news(1, FAR)] * 3 + [asked(FAR)]
    waits = [asyncio.create_task(watch.wait(f"s{index}", marks, 30)) for index, marks in enumerate(known)]
    await server.until(7)
    assert [len(stream.targets) for stream in watch._streams] == [4, 3]
    await watch.close()
    assert await asyncio.gather(*waits) == [True] * 4


async def test_a_target_that_is_waited_for_again_stays_though_nobody_did_at_the_last_tick(server: Listening) -> None:
    watch = Watch(server, tick=0.01)  # type: ignore[arg-type]
    left = asyncio.create_task(watch.wait(SESSION, asked(FAR), 30))
    server.say(Change.CURRENT, (await server.until(1)).add_target.target_id)
    (target,) = [target for target, _ in watch._targets.values()]
    await settled(lambda: target.current)
    left.cancel()
    await settled(lambda: target.idle)
    waiting = asyncio.create_task(watch.wait(SESSION, asked(FAR), 30))
    await asyncio.sleep(0)
    assert await watch.wait("in doubt, so woken at the next tick", asked(FAR), 30)
    assert target in [kept for kept, _ in watch._targets.values()]
    await watch.close()
    assert await waiting
