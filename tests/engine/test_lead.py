"""A client that does not read: the stream that started the turn holds its model back, in bounds; no other does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import pytest

from engine.rig import KEY, PATIENCE, Instance, Rig, eventually
from legato import Agent, Turn, sse
from legato.engine.lead import Lead
from legato.events import Cursor
from legato.models import Finished, ModelEvent, ModelRequest, TextChunk

WORDS = 40


class Words:
    """Forty words of 1,000 letters each, said once they may be, and how many were."""

    def __init__(self) -> None:
        self.said = 0
        self._may, self._may_in_thread = asyncio.Event(), threading.Event()

    def begin(self) -> None:
        self._may.set()
        self._may_in_thread.set()

    def __iter__(self) -> Iterator[str]:
        for _ in range(WORDS):
            self.said += 1
            yield "x" * 999 + " "

    def sync(self) -> Iterator[str]:
        self._may_in_thread.wait(PATIENCE)
        yield from self

    async def generator(self) -> AsyncIterator[str]:
        await self._may.wait()
        for word in self:
            yield word

    async def by_hand(self, turn: Turn) -> None:
        await self._may.wait()
        for word in self:
            await turn.text(word)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """As a model."""
        await self._may.wait()
        for word in self:
            yield TextChunk(word)
        yield Finished()


class Slow:
    """A client that takes one piece of its stream whenever it is told to."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self.frames = frames
        self.messages: list[sse.Message] = []
        self._decoder = sse.Decoder()

    async def take(self) -> None:
        self.messages += self._decoder.feed(await asyncio.wait_for(anext(self.frames), PATIENCE))

    async def rest(self) -> None:
        async with asyncio.timeout(PATIENCE):
            async for piece in self.frames:
                self.messages += self._decoder.feed(piece)

    @property
    def events(self) -> list[str]:
        return [message.data for message in self.messages if message.id]


async def starts(instance: Instance, words: Words) -> Slow:
    """Its client has read the turn's start and stops there; then the words begin."""
    client = Slow(instance.gateway.attach(KEY, await instance.start()).frames())
    for _ in range(2):
        await client.take()
    words.begin()
    return client


async def held(instance: Instance) -> Lead:
    lead = instance.live().writer.feed.lead
    await eventually(lambda: lead.holds)
    return lead


@pytest.mark.parametrize("kind", ["sync", "generator", "by_hand", "agent"])
async def test_a_starting_client_that_stops_reading_stops_the_model_until_it_reads_on(rig: Rig, kind: str) -> None:
    """Whatever the agent is; what was said is committed meanwhile, and nothing is missing."""
    words = Words()
    agent = Agent(model=words) if kind == "agent" else getattr(words, kind)
    instance = rig.instance(agent, ahead_bytes=8192)
    client = await starts(instance, words)
    await held(instance)
    await instance.live().writer.flush()
    counted = words.said
    await asyncio.sleep(0.1)
    assert words.said == counted < WORDS / 2
    assert len(await instance.stored()) == 1 + counted
    await client.rest()
    assert words.said == WORDS
    assert client.events == [record.data for record in await instance.stored()]


async def test_a_starting_client_that_never_reads_on_is_left_behind_and_its_stream_closed_as_slow(rig: Rig) -> None:
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=8192, hold_back_seconds=0.2)
    client = await starts(instance, words)
    assert (await instance.ended()).status == "completed"
    await client.rest()
    assert client.messages[-1].event == "stream.closing"
    assert '"reason":"slow"' in client.messages[-1].data
    resumed = await instance.follow(Cursor.parse(client.messages[-2].id or ""))
    events = [*client.events, *(message.data for message in await resumed.end())]
    assert events == [record.data for record in await instance.stored()]


async def test_followers_see_what_is_shown_while_the_starting_client_holds_back(rig: Rig) -> None:
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=8192)
    client = await starts(instance, words)
    follower = await instance.follow(start=True)
    await held(instance)
    await follower.until("text.delta", words.said)
    await follower.leave()
    await client.rest()


async def test_no_other_reader_holds_back(rig: Rig) -> None:
    """Neither one that follows nor one that sent the same turn again."""
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=1)
    await instance.start()
    again = Slow(instance.gateway.attach(KEY, await instance.start()).frames())
    stream = await instance.gateway.follow(KEY, cursor=None, start=True, turn="t1")
    assert stream
    follower = Slow(stream.frames())
    for client in (again, follower):
        await client.take()
    words.begin()
    assert (await instance.ended()).status == "completed"
    for client in (again, follower):
        await client.rest()
        assert client.messages[-1].event == "turn.completed"


async def test_a_starting_client_that_leaves_lets_go_at_once(rig: Rig) -> None:
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=8192)
    client = await starts(instance, words)
    await held(instance)
    await client.frames.aclose()
    assert (await instance.ended()).status == "completed"


async def test_a_stream_that_nobody_reads_holds_nothing_back(rig: Rig) -> None:
    """Its client was gone before its first byte."""
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=1)
    stream = instance.gateway.attach(KEY, await instance.start())
    words.begin()
    assert (await instance.ended()).status == "completed"
    await stream.frames().aclose()


async def test_a_turn_that_is_held_back_can_be_cancelled(rig: Rig) -> None:
    words = Words()
    instance = rig.instance(words.by_hand, ahead_bytes=8192)
    client = await starts(instance, words)
    await held(instance)
    await instance.gateway.cancel(KEY, "t1", "enough", "ann")
    assert (await instance.ended()).status == "interrupted"
    await client.rest()
    assert client.messages[-1].event == "turn.interrupted"


async def test_the_seconds_are_used_up_over_all_waits_and_once_by_all_who_wait() -> None:
    lead = Lead(ahead=10, seconds=2)
    lead.begin()
    lead.shown(20)
    loop = asyncio.get_running_loop()
    loop.call_later(1, lead.took, 20)
    await asyncio.gather(lead.let_go(), lead.let_go())
    assert not lead.slow
    lead.shown(20)
    began = loop.time()
    await lead.let_go()
    assert lead.slow
    assert loop.time() - began < 1.5
