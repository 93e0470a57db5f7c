"""What is shown before it is durable and what is not, and what an outage of the journal does to a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.rig import Fault, Gate, Instance, Puppet, Rig, ends, eventually, every_other, nth, types, unbroken
from legato import sse, tool
from legato.agents import Call
from legato.engine.open_turn import OpenTurn
from legato.events import Record
from legato.tools import ToolContext


@tool(effect="read")
async def look(key: str) -> str:
    return key


def seen(instance: Instance) -> list[str]:
    feed = instance.live().writer.feed
    return types([Record.of(sse.line(frame)) for frame in feed.after(feed.start, 10**9)])


async def begun(rig: Rig) -> tuple[Instance, Puppet]:
    puppet = Puppet()
    instance = rig.instance(puppet)
    await instance.start()
    await puppet.turn()
    return instance, puppet


async def test_text_reasoning_and_progress_are_shown_before_their_commit(rig: Rig) -> None:
    """Early events reach the feed while the journal still holds the append of the first of them."""
    instance, puppet = await begun(rig)
    gate, turn = instance.journal.hold("append"), await puppet.turn()
    turn.text("a")
    await gate.stood()
    turn.reasoning("b")
    turn.text("c")
    assert seen(instance) == ["turn.started", "text.delta", "reasoning.delta", "text.delta"]
    assert types(await instance.stored()) == ["turn.started"]
    gate.open()


async def test_a_tools_call_and_what_follows_it_are_shown_after_the_acknowledgement(rig: Rig) -> None:
    """While the append of `tool.call` is held, neither it nor the text behind it is shown."""
    instance, puppet = await begun(rig)
    gate, turn = instance.journal.hold("append"), await puppet.turn()
    calling = asyncio.create_task(turn.call(look, key="k"))
    await gate.stood()
    turn.text("behind")
    assert seen(instance) == ["turn.started"]
    instance.journal.heal()
    gate.open()
    assert await calling == "k"
    assert seen(instance)[:4] == ["turn.started", "tool.call", "text.delta", "tool.result"]


async def test_a_tools_result_is_shown_after_its_acknowledgement(rig: Rig) -> None:
    """While the append of `tool.result` is held, it is in no feed."""
    instance, puppet = await begun(rig)
    gate = Gate()

    @tool(effect="read")
    async def last() -> None:
        instance.journal.rule = nth(gate, 1, "append")

    calling = asyncio.create_task((await puppet.turn()).call(last))
    await gate.stood()
    assert seen(instance) == ["turn.started", "tool.call"]
    gate.open()
    await calling
    assert seen(instance) == ["turn.started", "tool.call", "tool.result"]


async def test_progress_is_shown_while_its_append_is_held(rig: Rig) -> None:
    """A tool's report is seen although the journal does not answer."""
    instance, puppet = await begun(rig)
    going = asyncio.Event()

    @tool(effect="read")
    async def work(*, turn: ToolContext) -> None:
        instance.journal.refuse("append")
        turn.progress("half", 0.5)
        await going.wait()

    calling = asyncio.create_task((await puppet.turn()).call(work))
    await instance.shown("tool.progress")
    assert types(await instance.stored()) == ["turn.started", "tool.call"]
    instance.journal.heal()
    going.set()
    await calling


async def test_the_terminal_event_is_shown_after_the_acknowledgement_of_its_commit(rig: Rig) -> None:
    """`turn.completed` is in no feed while its Commit is held."""
    instance, puppet = await begun(rig)
    gate = instance.journal.hold("commit")
    puppet.leave()
    await gate.stood()
    assert seen(instance) == ["turn.started"]
    gate.open()
    assert (await instance.ended()).status == "completed"


async def test_at_most_one_segment_of_a_session_is_unacknowledged(rig: Rig) -> None:
    """While one append is held no other is made; what arrived meanwhile is in the next one."""
    instance, puppet = await begun(rig)
    gate, turn = instance.journal.hold("append"), await puppet.turn()
    turn.text("1")
    await gate.stood()
    for word in "234":
        turn.text(word)
        await asyncio.sleep(0.03)
    assert instance.journal.calls.count("append") == 1
    instance.journal.heal()
    gate.open()
    puppet.leave()
    await instance.ended()
    assert [len(segment.records()) for segment in instance.journal.segments][1:3] == [1, 4]


async def test_a_repeated_segment_has_the_same_bytes(rig: Rig) -> None:
    """Whatever is said between two attempts, both carry the same segment."""
    instance, puppet = await begun(rig)
    turn = await puppet.turn()
    instance.journal.refuse("append")
    turn.text("1")
    await eventually(lambda: instance.journal.calls.count("append") >= 2)
    turn.text("2")
    await eventually(lambda: instance.journal.calls.count("append") >= 3)
    instance.journal.heal()
    puppet.leave()
    await instance.ended()
    attempts = [segment for segment in instance.journal.segments if segment.first == 2]
    assert len(attempts) >= 3
    assert len(set(attempts)) == 1


@pytest.mark.parametrize("limit", [{"pending_bytes": 4000, "pending_seconds": 60}, {"pending_seconds": 0.1}])
async def test_a_silent_journal_stops_the_model_and_bounds_the_buffer(rig: Rig, limit: dict[str, Any]) -> None:
    """With too much uncommitted the word counter stands; when the journal is back nothing is missing."""
    said: list[int] = []

    async def agent(turn: OpenTurn) -> None:
        for number in range(300):
            said.append(number)
            await turn.text(f"w{number} ".ljust(100))
            await asyncio.sleep(0.002)

    instance = rig.instance(agent, **limit)
    instance.journal.refuse("append", "renew")
    await instance.start()
    await eventually(lambda: not instance.live().writer.ready)
    stood = len(said)
    client = await instance.follow(start=True)
    await client.pinged(2)
    assert len(said) <= stood + 1 < 300
    instance.journal.heal()
    record = await instance.ended()
    assert record.output == "".join(f"w{number} ".ljust(100) for number in range(300))
    assert unbroken(await instance.stored())
    await client.end()


async def test_no_tool_starts_while_its_call_is_not_durable(rig: Rig) -> None:
    entered = asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        entered.set()
        return "paid"

    instance, puppet = await begun(rig)
    turn = await puppet.turn()
    instance.journal.refuse("append")
    calling = asyncio.create_task(turn.call(pay))
    await eventually(lambda: instance.journal.calls.count("append") >= 3)
    assert not entered.is_set()
    instance.journal.heal()
    assert await calling == "paid"


@pytest.mark.parametrize("fault", ["refuse", "lose"])
async def test_a_terminal_commit_that_fails_or_loses_its_answer_is_repeated(rig: Rig, fault: Fault) -> None:
    """The turn ends once, and no reader sees the end before the journal has it."""
    instance, puppet = await begun(rig)
    client = await instance.follow(start=True)
    instance.journal.rule = every_other(fault, "commit")
    puppet.leave()
    await eventually(lambda: instance.journal.calls.count("commit") >= 2)
    assert "turn.completed" not in client.kinds
    await client.until("turn.completed")
    assert (await instance.record()).status == "completed"
    await client.end()
    assert types(ends(await instance.stored())) == ["turn.completed"]


async def test_a_terminal_commit_that_hangs_shows_no_completed_turn(rig: Rig) -> None:
    """Readers get pings; on the other instance the turn is still streaming."""
    instance, puppet = await begun(rig)
    other = rig.instance(Puppet())
    clients = [await instance.follow(start=True), await other.follow(start=True)]
    gate = instance.journal.hold("commit")
    puppet.leave()
    await gate.stood()
    for client in clients:
        await client.pinged(2)
        assert client.kinds == ["turn.started"]
    assert (await other.record()).status == "streaming"
    gate.open()
    for client in clients:
        assert [message.event for message in await client.end()] == ["turn.started", "turn.completed"]


async def canonical(turn: OpenTurn) -> None:
    await turn.text("one ")
    await turn.call(look, key="k")
    await turn.step("say", lambda: _said(turn))
    await turn.call(look, key="l")
    await turn.text("three")


CANONICAL = [
    "turn.started", "text.delta", "tool.call", "tool.result", "text.delta", "tool.call", "tool.result", "text.delta",
    "turn.completed",
]  # fmt: skip


async def _said(turn: OpenTurn) -> None:
    await turn.text("two ")


TURN_CALLS = ("standing", "turn", "commit", "append")


@pytest.mark.parametrize("fault", ["refuse", "lose"])
@pytest.mark.parametrize("number", range(1, 9))
async def test_no_failed_call_of_a_turn_loses_or_repeats_anything(rig: Rig, fault: Fault, number: int) -> None:
    """Whichever of a turn's calls of the journal fails or loses its answer: the turn is the canonical one."""
    instance = rig.instance(canonical, flush=60)
    instance.journal.rule = nth(fault, number, *TURN_CALLS)
    records = await instance.play("input")
    assert len([call for call in instance.journal.calls if call in TURN_CALLS]) == 9
    assert unbroken(records)
    assert types(records) == CANONICAL
    assert (await instance.record()).output == "one two three"


@pytest.mark.parametrize("fault", ["refuse", "lose"])
@pytest.mark.parametrize("method", ["append", "commit", "renew", "standing", "control", "turn"])
async def test_every_other_call_of_a_method_may_fail(rig: Rig, fault: Fault, method: str) -> None:
    """The turn is the canonical one although each call of `method` is made twice."""
    instance = rig.instance(canonical, flush=60, lease=0.3)
    instance.journal.rule = every_other(fault, method)
    assert types(await instance.play("input")) == CANONICAL


async def test_a_large_turn_is_cut_into_segments_that_fit(rig: Rig) -> None:
    """Four results of 300 KB at once never share one segment of more than 900 KiB."""

    @tool(effect="read")
    async def big() -> str:
        return "x" * 300_000

    async def agent(turn: OpenTurn) -> None:
        await turn.calls([Call(big, "big", {})] * 4)

    instance = rig.instance(agent)
    records = await instance.play()
    assert unbroken(records)
    assert types(records).count("tool.result") == 4
    assert all(len(segment.events) < 900 * 1024 for segment in instance.journal.segments)


async def test_a_clock_that_is_set_back_delays_no_commit(rig: Rig) -> None:
    """What is shown is as soon durable as ever, and an outage still stops what is shown."""
    instance, puppet = await begun(rig)
    turn, appended = await puppet.turn(), Gate(after=True)
    instance.journal.rule = nth(appended, 1, "append")
    turn.text("a")
    instance.clock.advance(-3600)
    await appended.stood()
    instance.clock.advance(-3600)
    await eventually(lambda: not instance.live().writer.ready)
    turn.text("b")
    assert len(seen(instance)) == 2
    appended.open()
