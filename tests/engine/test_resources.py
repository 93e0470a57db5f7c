"""What is left behind: nothing of ended turns and of readers that left; and who blocks the loop is named."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from pathlib import Path

import pytest
import uvloop

from engine.rig import KEY, Client, Instance, Puppet, Rig, eventually
from journal.builders import segment
from legato import tool
from legato.agents import Turn
from legato.engine.feed import Feed
from legato.engine.lead import Lead
from legato.engine.watchdog import BEAT_SECONDS, Watchdog
from legato.errors import ModelFailed
from legato.journal import SessionKey


@tool(effect="idempotent")
async def look() -> str:
    return "seen"


async def agent(turn: Turn) -> None:
    await turn.text("a")
    await turn.call(look)
    if turn.input == "fail":
        raise ModelFailed("broken", "the model broke off")


async def endless(turn: Turn) -> None:
    await turn.text("a")
    await asyncio.Event().wait()


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def references(kind: type) -> int:
    gc.collect()
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


async def test_a_hundred_turns_leave_no_task_and_no_feed(rig: Rig) -> None:
    """Completed, failed, cancelled, in sessions of their own."""
    instance = rig.instance(agent)
    await instance.play()
    await eventually(lambda: not instance.engine._tasks)
    tasks, feeds = others(), references(Feed)
    await asyncio.gather(*(one_turn(instance, index) for index in range(100)))
    await eventually(lambda: not instance.engine._tasks and others() <= tasks)
    assert instance.engine.live == {}
    assert references(Feed) == feeds


@pytest.mark.parametrize("end", ["completed", "failed", "interrupted"])
async def test_an_ended_turn_is_freed_at_once_without_the_garbage_collector(rig: Rig, end: str) -> None:
    """What was said may be megabytes, and a process that serves streams collects garbage rarely."""
    instance = rig.instance(endless if end == "interrupted" else agent)
    gc.collect()
    gc.disable()
    try:
        await instance.start("fail" if end == "failed" else "")
        writer = weakref.ref(instance.live().writer)
        if end == "interrupted":
            await instance.gateway.cancel(KEY, "t1", "enough", "ann")
        await eventually(lambda: not instance.engine.live and writer() is None)
    finally:
        gc.enable()


async def one_turn(instance: Instance, index: int) -> None:
    key = SessionKey("ann", f"s{index}")
    await instance.start("fail" if index % 3 == 0 else "", key=key)
    if index % 3 == 1:
        await instance.gateway.cancel(key, "t1", "enough", "ann")
    await instance.ended(key=key)


async def test_a_thousand_readers_that_leave_leave_nothing(rig: Rig) -> None:
    """A hundred at a time; half of them read the feed, half the journal; the turn does not notice."""
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    await owner.start()
    feed = owner.live().writer.feed
    await other.stored()
    tasks = others()
    readers = [reader for _ in range(10) for reader in await a_hundred_come_and_go(owner, other)]
    await eventually(lambda: not feed._waiting and others() <= tasks)
    gc.collect()
    assert not any(reader() for reader in readers)
    assert owner.live().id == "t1"


def test_readers_may_wait_for_as_short_as_they_like() -> None:
    """In the ASGI face's event loop, too, where what is due at once is no timer."""

    async def waits() -> None:
        feed = Feed(segment(1), 1000, Lead(1000, 1))
        await asyncio.gather(*(feed.wait(feed.last, 0.0) for _ in range(2)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(waits())


async def a_hundred_come_and_go(*instances: Instance) -> list[weakref.ref[Client]]:
    clients = [await instances[n % 2].follow(start=True) for n in range(100)]
    for client in clients:
        await client.until("turn.started")
    await asyncio.gather(*(client.leave() for client in clients))
    return [weakref.ref(client) for client in clients]


async def test_a_reader_that_leaves_while_the_journal_hangs_leaves_nothing(rig: Rig) -> None:
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    await owner.start()
    stream = await other.gateway.follow(KEY, cursor=None, start=True, turn="t1")
    assert stream
    await other.stored()
    tasks, gate = others(), other.journal.hold("read")
    client = Client(stream)
    await gate.stood()
    await client.leave()
    await eventually(lambda: others() <= tasks)


def test_a_tool_that_blocks_the_loop_is_named_within_two_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the function and its file while it still blocks; the turn ends well."""
    began: list[float] = []

    @tool(effect="read")
    async def stuck() -> None:
        began.append(time.time())
        time.sleep(2.5)  # noqa: ASYNC251 - this is the fault

    async def calls(turn: Turn) -> None:
        await turn.call(stuck)

    async def main() -> None:
        watchdog = Watchdog()
        made = Rig(tmp_path / "journal.sqlite")
        async with made.stack:
            instance = made.instance(calls)
            await asyncio.sleep(BEAT_SECONDS)
            await instance.start()
            assert (await instance.ended()).status == "completed"
        watchdog.close()

    with caplog.at_level(logging.ERROR, "legato.watchdog"):
        thread = threading.Thread(target=asyncio.run, args=(main(),), name="server")
        thread.start()
        thread.join(20)
    named = [record for record in caplog.records if "stuck" in record.getMessage()]
    assert "test_resources.py" in named[0].getMessage()
    assert named[0].created - began[0] <= 2
