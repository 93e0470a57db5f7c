"""What is too much ends in an event that says so, and what waits for slow readers is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.rig import KEY, Instance, Puppet, Rig, eventually
from legato import Agent, Turn, tool
from legato.engine.calls import PROGRESS_SECONDS
from legato.events import Cursor
from legato.follow import PIECE_BYTES, STORED_BYTES, Reader
from legato.models import ModelEvent, ModelRequest, TextChunk
from legato.tools import ToolContext


class Silent:
    """A model that speaks every `pause` seconds, so many `words`, and then no more."""

    def __init__(self, pause: float, words: int = 3) -> None:
        self.pause, self.words = pause, words
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            for _ in range(self.words):
                await asyncio.sleep(self.pause)
                yield TextChunk("word ")
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def failure(instance: Instance) -> tuple[object, object, object]:
    """How the turn ended: code, retryable, partial."""
    record = await instance.ended()
    last = (await instance.stored())[-1].fields()
    assert record.status == "failed"
    return last["code"], last["retryable"], record.partial


async def test_a_turn_that_takes_too_long_is_failed_and_its_model_closed(rig: Rig) -> None:
    model = Silent(0.01)
    instance = rig.instance(Agent(model=model), turn_seconds=0.2)
    await instance.start()
    assert await failure(instance) == ("turn_too_long", False, "word word word ")
    assert model.closed


async def test_a_turn_that_takes_too_long_lets_its_once_tool_finish_and_tears_the_others_down(rig: Rig) -> None:
    """What the `once` tool did is in the journal ahead of the end."""
    ended: list[str] = []

    @tool(effect="once", timeout=5)
    async def pay(*, turn: ToolContext) -> str:
        await eventually(lambda: turn.cancelled)
        ended.append("paid")
        return "paid"

    @tool(effect="read")
    async def look() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("torn down")

    async def agent(turn: Turn) -> None:
        await asyncio.gather(turn.call(look), turn.call(pay))

    instance = rig.instance(agent, turn_seconds=0.2)
    await instance.start()
    assert (await failure(instance))[0] == "turn_too_long"
    assert sorted(ended) == ["paid", "torn down"]
    (result,) = [record.fields() for record in await instance.stored() if record.type == "tool.result"]
    assert result["content"] == "paid"


async def test_a_turn_is_measured_from_its_start_by_the_clock_that_all_owners_share(rig: Rig) -> None:
    """An owner that begins to measure later, as after a takeover, does not begin anew."""
    instance = rig.instance(Puppet(), turn_seconds=3600)
    gate = instance.journal.hold("commit")
    gate.after = True
    starting = asyncio.create_task(instance.start())
    await gate.stood()
    instance.clock.advance(3601)
    gate.open()
    await starting
    assert (await failure(instance))[0] == "turn_too_long"


async def test_a_silent_model_is_given_up_and_may_be_tried_again(rig: Rig) -> None:
    """Its silence is counted from its last event, and its stream is closed."""
    model = Silent(0.1, words=8)
    instance = rig.instance(Agent(model=model, silence=0.7), model_retries=0)
    await instance.start()
    assert await failure(instance) == ("model_silent", True, "word " * 8)
    assert model.closed


async def test_progress_is_not_kept_while_the_journal_is_away(rig: Rig) -> None:
    reporting, enough = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def busy(*, turn: ToolContext) -> None:
        while not enough.is_set():
            turn.progress("still")
            reporting.set()
            await asyncio.sleep(PROGRESS_SECONDS / 4)

    async def agent(turn: Turn) -> None:
        await turn.call(busy)

    instance = rig.instance(agent)
    await instance.start()
    await reporting.wait()
    gate = instance.journal.hold("append")
    writer = instance.live().writer
    await eventually(lambda: not writer.ready)
    numbered = writer.seq
    await asyncio.sleep(3 * PROGRESS_SECONDS)
    assert writer.seq == numbered
    instance.journal.heal()
    gate.open()
    await instance.shown("tool.progress", numbered)
    enough.set()
    assert (await instance.ended()).status == "completed"


async def large(turn: Turn) -> None:
    """Text of 8 KiB an event, a segment of its own each, and one result that is larger than any piece."""
    for _ in range(60):
        await turn.text("x" * 8192)
        await turn.step("durable", nothing)
    await turn.call(big)


@tool(effect="read")
def big() -> str:
    return "x" * 1_000_000


async def nothing() -> None: ...


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_stream_hands_over_one_piece_at_a_time(rig: Rig, where: str) -> None:
    """Whatever an event's size: it is what a server buffers for a client that does not read."""
    owner = rig.instance(large)
    await owner.start()
    if where == "elsewhere":
        await owner.ended()
    client = await (owner if where == "here" else rig.instance(large)).follow(start=True)
    await client.end()
    assert max(map(len, client.chunks)) < 2 * PIECE_BYTES
    assert client.data == [record.data for record in await owner.stored()]


async def test_a_reader_takes_up_a_bounded_part_of_the_journal_at_once(rig: Rig) -> None:
    """And asks for no more than it keeps, once it knows how large segments are here."""
    owner = rig.instance(large)
    await owner.play()
    reader = Reader(owner.runtime, owner.engine, KEY, Cursor(0, 0), "t1", exact=True)
    taken: list[list[int]] = []
    owner.journal.calls.clear()
    while (batch := await reader.stored(0)) and not batch.over:
        taken.append([len(frame) for frame in batch.frames])
    assert all(sum(sizes[:-1]) < STORED_BYTES + 10_000 for sizes in taken)
    assert owner.journal.calls.count("read") == len(taken) + 1 <= 6


async def test_many_small_segments_are_read_in_few_reads(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        for number in range(500):
            for _ in range(4):
                turn.text(f"w{number} ")
            await turn.step("durable", nothing)

    owner, other = rig.instance(agent), rig.instance(Puppet())
    await owner.play()
    client = await other.follow(start=True)
    assert len(await client.end()) == 2002
    assert other.journal.calls.count("read") <= 4
