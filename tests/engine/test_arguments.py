"""Arguments that no journal can hold settle their call as `bad_arguments` and harm neither the turn nor its journal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engine.rig import Instance, Rig, types
from legato import Agent, ToolFailed, Turn, tool
from legato.agents import Call
from legato.demo import agent as demo
from legato.models.scripted import ScriptedModel


@tool(effect="read")
async def echo(value: Any) -> Any:
    return value


async def payloads(instance: Instance, kind: str) -> list[dict[str, Any]]:
    return [json.loads(record.data) for record in await instance.stored() if record.type == kind]


@pytest.mark.parametrize("depth", [120, 220, 400])
async def test_a_models_arguments_nested_too_deep_settle_the_call(rig: Rig, depth: int) -> None:
    instance = rig.instance(Agent(model=ScriptedModel(), tools=[echo]))
    script = '/tool echo {"value": ' + "[" * depth + "]" * depth + "}\n/say 1"
    assert types(await instance.play(script))[1:] == ["tool.call", "tool.result", "text.delta", "turn.completed"]
    (result,) = await payloads(instance, "tool.result")
    assert result["error"] == {"code": "bad_arguments", "message": "nested deeper than 100 levels"}
    assert all(record.decode() for record in await instance.stored())


@pytest.mark.parametrize("depth", [95, 97, 99])
async def test_arguments_as_deep_as_may_be_reach_their_tool(rig: Rig, depth: int) -> None:
    """They are stored twice, and deeper in their model's answer than in their call."""
    instance = rig.instance(Agent(model=ScriptedModel(), tools=[echo]))
    await instance.play('/tool echo {"value": ' + "[" * depth + "]" * depth + "}\n/say 1")
    assert [result["ok"] for result in await payloads(instance, "tool.result")] == [True]


@pytest.mark.parametrize("wrong", [math.nan, b"x", object(), {1: 2}])
async def test_a_hand_written_agent_is_told_what_is_no_json(rig: Rig, wrong: Any) -> None:
    async def agent(turn: Turn) -> None:
        with pytest.raises(ToolFailed, match="is not JSON"):
            await turn.call(echo, value=wrong)

    instance = rig.instance(agent)
    assert types(await instance.play()) == ["turn.started", "tool.call", "tool.result", "turn.completed"]


@pytest.mark.parametrize("large", ["x" * 4_000_000, "\u2028" * 600_000])
async def test_arguments_that_no_commit_can_hold_settle_the_call(rig: Rig, large: str) -> None:
    """They are measured as an event has them, and the turn goes on."""

    async def agent(turn: Turn) -> None:
        with pytest.raises(ToolFailed, match="at most 2097152 fit"):
            await turn.call(echo, value=large)

    instance = rig.instance(agent)
    assert types(await instance.play()) == ["turn.started", "tool.call", "tool.result", "turn.completed"]


async def test_arguments_of_calls_made_together_that_no_commit_can_hold_settle_those_beyond(rig: Rig) -> None:
    """Each would fit for itself. Those that fit are made, and all are durable together."""

    async def agent(turn: Turn) -> None:
        calls = [Call(echo, "echo", {"value": "x" * 800_000}) for _ in range(4)]
        outcomes = await turn.calls([*calls, Call(echo, "echo", {"value": 1})])
        assert [outcome.error and outcome.error.code for outcome in outcomes] == [None] * 2 + ["bad_arguments"] * 2 + [
            None
        ]

    instance = rig.instance(agent)
    assert (await instance.play())[-1].type == "turn.completed"
    assert sum(len(segment.events) for segment in instance.journal.segments[:3]) < 2_100_000


async def test_halves_of_pairs_reach_neither_journal_nor_tool(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        assert await turn.call(echo, value=["\ud83d\ude00", "\ud83d"]) == ["😀", "\ufffd"]

    instance = rig.instance(agent)
    await instance.play()
    (call,) = await payloads(instance, "tool.call")
    assert call["arguments"] == {"value": ["😀", "\ufffd"]}


async def test_the_demo_agent_plays_every_directive(rig: Rig) -> None:
    instance = rig.instance(demo)
    script = (
        '/say 2\n/parallel lookup {"key": "a"} slow {"seconds": 0} nobody\n/think 1\n/tool big {"bytes": 3}\n/say 1'
    )
    assert (await instance.play(script))[-1].type == "turn.completed"
    ended = await instance.ended()
    assert (ended.output, [tool.status for tool in ended.tools]) == ("w1 w2 w3 ", ["ok", "ok", "error", "ok"])


async def test_large_calls_made_together_are_one_commit(rig: Rig) -> None:
    @tool(effect="read")
    async def look(text: str) -> None: ...

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(look, "look", {"text": "x" * 600_000}), Call(look, "look", {"text": "y" * 600_000})])

    one = rig.instance(agent)
    await one.play()
    assert [types(s.records()) for s in one.journal.segments if "tool.call" in types(s.records())] == [
        ["tool.call", "tool.call"]
    ]
