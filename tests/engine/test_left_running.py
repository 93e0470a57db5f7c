"""Calls that an agent left running when it ended: what was done is recorded, and nothing starts any more."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from engine.payment import Payment
from engine.rig import KEY, PATIENCE, Rig, eventually, types
from legato import tool
from legato.agents import Call, Turn
from legato.errors import Refused, ToolFailed

End = Literal["returns", "fails", "is cancelled"]
ENDS: dict[End, str] = {
    "returns": "turn.completed",
    "fails": "turn.failed",
    "is cancelled": "turn.interrupted",
}


@tool(effect="read")
async def broken() -> None:
    raise ToolFailed("broken", "no")


@pytest.mark.parametrize("end", ENDS)
async def test_a_once_tool_whose_agent_ended_is_let_finish_and_recorded_before_the_end(rig: Rig, end: End) -> None:
    payment = Payment()
    left: list[asyncio.Task[object]] = []

    async def agent(turn: Turn) -> None:
        left.append(asyncio.ensure_future(turn.call(payment.tool)))
        await payment.entered()
        if end == "fails":
            await turn.call(broken)
        if end == "is cancelled":
            await asyncio.Event().wait()

    instance = rig.instance(agent)
    await instance.start()
    await payment.entered()
    if end == "is cancelled":
        await instance.gateway.cancel(KEY, "t1", "enough", "ann")
    client = await instance.follow(start=True)
    await client.pinged(2)
    assert ENDS[end] not in client.kinds
    payment.going.set()
    record = await instance.ended()
    assert types(await instance.stored())[-2:] == ["tool.result", ENDS[end]]
    assert (record.tools[0].name, record.tools[0].status) == ("pay", "ok")


async def test_one_of_two_gathered_calls_fails_and_the_other_is_recorded(rig: Rig) -> None:
    """The way most would write it: `gather` raises at the first failure and leaves the rest running."""
    payment = Payment()

    async def agent(turn: Turn) -> None:
        await asyncio.gather(turn.call(payment.tool), turn.call(broken))

    instance = rig.instance(agent)
    await instance.start()
    await payment.entered()
    await instance.shown("tool.result")
    payment.going.set()
    record = await instance.ended()
    assert record.status == "failed"
    assert [(state.name, state.status) for state in record.tools] == [("pay", "ok"), ("broken", "error")]


async def test_a_tool_that_may_run_again_is_torn_down_with_its_agent(rig: Rig) -> None:
    entered, torn = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[object]] = []

    @tool(effect="read")
    async def look() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            torn.set()

    async def agent(turn: Turn) -> None:
        left.append(asyncio.ensure_future(turn.call(look)))
        await entered.wait()

    instance = rig.instance(agent)
    await instance.start()
    record = await instance.ended()
    assert torn.is_set()
    assert (record.status, record.tools[0].status) == ("completed", "unsettled")


async def test_a_call_that_is_durable_as_its_agent_ends_starts_no_tool(rig: Rig) -> None:
    entered = asyncio.Event()
    left: list[asyncio.Task[object]] = []

    @tool(effect="once")
    async def pay() -> None:
        entered.set()

    async def agent(turn: Turn) -> None:
        left.append(asyncio.ensure_future(turn.call(pay)))
        await asyncio.sleep(0)

    instance = rig.instance(agent)
    await instance.start()
    await instance.ended()
    await eventually(left[0].done)
    assert isinstance(left[0].exception(), Refused)
    assert not entered.is_set()


async def test_a_step_that_outlasts_its_turn_writes_nothing_any_more(rig: Rig) -> None:
    """Its record would come with a lease that is live again."""
    going, left = asyncio.Event(), list[asyncio.Task[object]]()

    async def agent(turn: Turn) -> None:
        left.append(asyncio.ensure_future(turn.step("late", going.wait)))
        await asyncio.sleep(0)

    instance = rig.instance(agent)
    await instance.start()
    await instance.ended()
    going.set()
    await eventually(left[0].done)
    assert isinstance(left[0].exception(), Refused)
    lease = await instance.journal.lease(KEY)
    assert lease
    assert lease.expires_at == 0


async def test_no_calls_at_all_have_no_outcomes(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        none: list[Call] = []
        assert await turn.calls(none) == []

    instance = rig.instance(agent)
    assert types(await instance.play()) == ["turn.started", "turn.completed"]


@pytest.mark.parametrize("raised", [GeneratorExit, SystemExit, KeyboardInterrupt, BaseException])
async def test_whatever_a_tool_raises_settles_its_call(rig: Rig, raised: type[BaseException]) -> None:
    @tool(effect="read")
    async def wild() -> None:
        raise raised

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(wild, "wild", {})])

    instance = rig.instance(agent)
    assert types(await instance.play()) == ["turn.started", "tool.call", "tool.result", "turn.completed"]


async def test_an_engine_that_is_closed_under_a_once_tool_ends_with_it(rig: Rig) -> None:
    """Nothing is committed any more, and nobody waits for that."""
    payment = Payment()
    instance = rig.instance(payment.agent)
    await instance.start()
    await payment.entered()
    closing = asyncio.create_task(instance.engine.close())
    await asyncio.sleep(0.05)
    payment.going.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    assert types(await instance.stored()) == ["turn.started", "tool.call"]
