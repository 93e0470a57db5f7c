"""Calls in doubt beside questions, cancels and drains: no effect twice, and no turn that is resumed for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Instance, Rig, eventually, types
from engine.test_reentry import Tools, lose
from legato import tool
from legato.agents import Call, Turn
from legato.journal import TurnRecord
from legato.tools import _THREADS


@pytest.fixture
def tools(rig: Rig) -> Iterator[Tools]:
    made = Tools()
    yield made
    made.stop.opened.set()


async def waiting(one: Instance) -> TurnRecord:
    """Once its owner has also looked again whether it may go on with it."""
    await one.engine.rest(PATIENCE)
    record = await one.record()
    assert record.status == "waiting", record
    return record


async def test_a_call_in_doubt_is_still_in_doubt_after_its_turn_has_waited(rig: Rig, tools: Tools) -> None:
    act = tools.make("once", timeout=5)

    @tool(effect="read")
    async def look() -> None:
        await asyncio.sleep(0.2)

    @tool(approval="Wire?")
    async def wire() -> None: ...

    async def one_branch(turn: Turn) -> None:
        await asyncio.sleep(0.05)
        await turn.call(act)

    async def other_branch(turn: Turn) -> None:
        await turn.call(look)
        await turn.call(wire)

    async def agent(turn: Turn) -> None:
        await asyncio.gather(one_branch(turn), other_branch(turn))

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await tools.stop.stood()
    await eventually(lambda: owner.live().questions.open)
    await lose(owner, other, tools.stop.reached)
    await waiting(other)
    asked = (await other.gateway.snapshot(KEY, None))["active"]["approvals"]
    for question in asked:
        await other.gateway.decide(KEY, "t1", question["request"], question["kind"] == "approval", None)
    await other.ended()
    assert len(tools.entered) == 1


async def test_a_turn_is_not_put_to_rest_with_an_answer_that_its_agent_is_about_to_take_up(rig: Rig) -> None:
    wired: list[int] = []

    @tool(approval="Wire?")
    async def wire(n: int) -> None:
        wired.append(n)

    async def quick() -> None:
        await asyncio.sleep(0.2)

    async def first(turn: Turn) -> None:
        await turn.step("quick", quick)
        await turn.call(wire, n=1)

    async def second(turn: Turn) -> None:
        await asyncio.sleep(0.1)
        await turn.call(wire, n=2)

    async def agent(turn: Turn) -> None:
        await asyncio.gather(first(turn), second(turn))

    one = rig.instance(agent)
    await one.start()
    await waiting(one)
    asked = (await one.gateway.snapshot(KEY, None))["active"]["approvals"]
    await one.gateway.decide(KEY, "t1", asked[0]["request"], True, None)
    await eventually(lambda: bool(wired))
    await waiting(one)
    assert types(await one.stored()).count("turn.resumed") == 1


async def test_a_question_that_reconcile_has_answered_is_asked_no_more(rig: Rig) -> None:
    knows: list[bool] = []
    hold = threading.Event()

    def reconcile(key: str) -> Any:
        if not knows:
            raise RuntimeError("not now")
        return "done"

    @tool(effect="once", timeout=0.1, reconcile=reconcile)
    def act() -> str:
        hold.wait()
        return "done"

    @tool(approval="Wire?")
    async def wire() -> None: ...

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, "act", {}), Call(wire, "wire", {})])

    one = rig.instance(agent)
    await one.start()
    try:
        await waiting(one)
        knows.append(True)
        await one.gateway.decide(KEY, "t1", "1-1-1", False, None)
        await waiting(one)
        assert types(await one.stored()).count("approval.resolved") == 1
        (wire_call,) = [
            a for a in (await one.gateway.snapshot(KEY, None))["active"]["approvals"] if "approved" not in a
        ]
        assert wire_call["call"] == "1-2"
        await one.gateway.decide(KEY, "t1", wire_call["request"], True, None)
        await one.ended()
        assert types(await one.stored()).count("turn.resumed") == 2
    finally:
        hold.set()


async def test_one_yes_repeats_a_call_once(rig: Rig) -> None:
    entered: list[int] = []
    hold = threading.Event()

    @tool(effect="once", timeout=0.1)
    def act() -> str:
        entered.append(1)
        hold.wait()
        return "done"

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, "act", {})])

    one = rig.instance(agent)
    await one.start()
    try:
        await waiting(one)
        await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
        await eventually(lambda: not one.engine.live)
        assert len(entered) == 2
        assert (await one.record()).status == "waiting"
    finally:
        hold.set()


async def test_a_once_tool_that_waits_for_a_thread_is_not_begun_after_its_turn_was_cancelled(rig: Rig) -> None:
    hold, entered = threading.Event(), list[int]()

    @tool(effect="once", timeout=1)
    def act() -> None:
        entered.append(1)

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, "act", {})])

    for _ in range(40):
        _THREADS.submit(hold.wait)
    one = rig.instance(agent)
    try:
        await one.start()
        await one.shown("tool.call")
        await asyncio.sleep(0.05)
        await one.gateway.cancel(KEY, "t1", "no", "ann")
        await asyncio.sleep(0.1)
    finally:
        hold.set()
    await one.ended()
    assert entered == []
