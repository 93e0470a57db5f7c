"""What turns keep for later turns of their session, and calls for their agent alone."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import JsonValue

from engine.rig import KEY, Gate, Rig, eventually, nth
from legato.agents import Call, Turn
from legato.tools import ToolContext, tool

WANTED = 3


async def keeping(turn: Turn) -> None:
    """Says what it finds kept, and keeps its input, unless that is to fail."""
    await turn.text(" ".join(map(str, await turn.kept(WANTED))))
    turn.keep(turn.input)
    if turn.input == "fails":
        raise RuntimeError


async def test_a_turn_is_given_what_the_newest_ones_before_it_have_kept(rig: Rig) -> None:
    a = rig.instance(keeping)
    for number in range(6):
        await a.play(str(number), f"t{number}")
    assert (await a.record("t2")).output == "0 1"
    assert (await a.record("t5")).output == "2 3 4"
    assert len(await a.journal.private(KEY, "-", a.clock())) == WANTED


async def test_what_is_kept_no_longer_goes_in_the_commit_of_the_turns_end(rig: Rig) -> None:
    """Were it gone before, an owner lost in between would leave the next one less than it found itself."""
    saying = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await keeping(turn)
        await saying.wait()

    a, b = rig.instance(keeping), rig.instance(waits)
    for number in range(WANTED):
        await a.play(str(number), f"t{number}")
    await b.start("last", "t9")
    b.journal.rule = nth(gate := Gate(after=True), 1, "commit")
    saying.set()
    await gate.stood()
    assert (await b.record("t9")).status == "completed"
    assert len(await a.journal.private(KEY, "-", a.clock())) == WANTED
    gate.open()


async def test_a_turn_that_does_not_complete_keeps_nothing(rig: Rig) -> None:
    a = rig.instance(keeping)
    await a.play("fails", "t1")
    await a.play("then", "t2")
    assert (await a.record("t2")).output == ""


async def test_what_a_turn_that_is_tried_again_has_kept_is_replaced(rig: Rig) -> None:
    a = rig.instance(keeping)
    await a.play("first", "t1")
    await a.start("second", "t2", retry_of="t1")
    assert (await a.ended("t2")).output == ""
    await a.play("third", "t3")
    assert (await a.record("t3")).output == "second"


@pytest.mark.parametrize("value", [float("nan"), "x" * 1024 * 1024], ids=["no-json", "too-large"])
async def test_what_cannot_be_kept_is_refused(rig: Rig, value: JsonValue) -> None:
    async def agent(turn: Turn) -> None:
        turn.keep(value)

    a = rig.instance(agent)
    await a.play()
    assert (await a.record()).status == "failed"


@tool(effect="read")
async def noting(*, turn: ToolContext) -> str:
    turn.note({"secret": 7})
    return "seen"


async def noted(turn: Turn) -> None:
    """Says what a call has left for it, once a person has approved another."""
    (outcome,) = await turn.calls([Call(noting, "noting", {})])
    await turn.call(asking)
    await turn.text(str(outcome.note))


@tool(effect="read", approval="Go on?")
async def asking() -> None: ...


async def test_what_a_call_leaves_for_its_agent_is_given_to_it_when_it_is_entered_again_and_to_no_client(
    rig: Rig,
) -> None:
    a, b = rig.instance(noted), rig.instance(noted)
    await a.start()
    await eventually(lambda: not a.engine.live)
    await b.gateway.decide(KEY, "t1", "2-1-1", True, None)
    assert (await b.ended()).output == "{'secret': 7}"
    assert not any("secret" in record.data for record in await b.stored() if record.type == "tool.result")


async def test_a_note_that_is_too_large_fails_its_call(rig: Rig) -> None:
    @tool(effect="read")
    async def verbose(*, turn: ToolContext) -> None:
        turn.note("x" * 1024 * 1024)

    async def agent(turn: Turn) -> None:
        (outcome,) = await turn.calls([Call(verbose, "verbose", {})])
        await turn.text(outcome.error.code if outcome.error else "ok")

    a = rig.instance(agent)
    await a.play()
    assert (await a.record()).output == "result_too_large"


async def test_a_session_that_was_deleted_has_kept_nothing(rig: Rig) -> None:
    a = rig.instance(keeping)
    await a.play("before", "t1")
    await a.gateway.delete(KEY)
    await a.start("after", "t2")
    assert (await a.ended("t2")).output == ""
