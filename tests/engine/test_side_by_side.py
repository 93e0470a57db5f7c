"""Branches of one agent that run side by side: recorded together, entered again together."""

from __future__ import annotations

import asyncio

from engine.rig import PATIENCE, Rig
from engine.test_reentry import Stop, lose
from legato import tool
from legato.agents import Turn
from legato.errors import ModelFailed


async def test_steps_side_by_side_start_over_beside_those_that_are_recorded(rig: Rig) -> None:
    stop, recorded = Stop(), asyncio.Event()

    async def held() -> str:
        await stop()
        return "a"

    async def quick() -> str:
        return "b"

    async def other_branch(turn: Turn) -> object:
        b = await turn.step("b", quick)
        recorded.set()
        return b

    async def agent(turn: Turn) -> None:
        a, b = await asyncio.gather(turn.step("a", held), other_branch(turn))
        turn.text(f"{a}{b}")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await stop.stood()
    await asyncio.wait_for(recorded.wait(), PATIENCE)
    await lose(owner, other, stop.reached)
    record = await other.ended()
    stop.opened.set()
    assert (record.status, record.output) == ("completed", "ab"), record.error


async def test_branches_side_by_side_are_entered_again(rig: Rig) -> None:
    stop, ahead = Stop(), asyncio.Event()

    @tool(effect="read")
    async def look(n: int) -> int:
        return n

    async def branch(turn: Turn, n: int) -> None:
        await turn.call(look, n=n)
        await turn.call(look, n=n + 1)
        if n == 0:
            await stop()
        await turn.call(look, n=n + 2)
        ahead.set()

    async def agent(turn: Turn) -> None:
        await asyncio.gather(branch(turn, 0), branch(turn, 10))
        turn.text("end")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await stop.stood()
    await asyncio.wait_for(ahead.wait(), PATIENCE)
    await lose(owner, other, stop.reached)
    record = await other.ended()
    stop.opened.set()
    assert (record.status, record.output) == ("completed", "end"), record.error


async def test_what_a_step_said_beside_a_recorded_call_is_not_said_twice(rig: Rig) -> None:
    stop, looked = Stop(), asyncio.Event()

    @tool(effect="read")
    async def look() -> int:
        return 1

    async def agent(turn: Turn) -> None:
        async def speak() -> str:
            turn.text("x ")
            await stop()
            return "y"

        async def see() -> None:
            await turn.call(look)
            looked.set()

        await asyncio.gather(see(), turn.step("speak", speak))

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await asyncio.wait_for(looked.wait(), PATIENCE)
    await lose(owner, other, stop.reached)
    record = await other.ended()
    assert (record.status, record.output) == ("completed", "x ")


async def test_a_step_that_is_tried_again_takes_back_what_it_said_alone(rig: Rig) -> None:
    tried = iter(range(9))

    async def agent(turn: Turn) -> None:
        said = asyncio.Event()

        async def failing() -> None:
            turn.text("a ")
            await said.wait()
            if next(tried) == 0:
                raise ModelFailed("overloaded", "later", retryable=True, retry_after=0.001)

        async def steady() -> None:
            turn.text("b ")
            said.set()

        await asyncio.gather(turn.step("failing", failing), turn.step("steady", steady))

    instance = rig.instance(agent)
    await instance.play()
    output = (await instance.record()).output
    assert output is not None
    assert sorted(output.split()) == ["a", "b"]
