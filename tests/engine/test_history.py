"""What a turn is told of the session's past, and what is kept of turns that did not complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.rig import KEY, Instance, Rig
from legato import Agent, tool
from legato.agents import PastTurn, Turn
from legato.models import AssistantMessage, ModelRequest, UserMessage
from legato.models.scripted import ScriptedModel


class Asking:
    """An agent that asks for its history, answers, and fails or hangs when its input says so."""

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.told: dict[str, Sequence[PastTurn]] = {}

    async def __call__(self, turn: Turn) -> None:
        self.told[turn.id] = await turn.history(self.limit)
        turn.text(f"to {turn.input}")
        if turn.input == "fail":
            raise ZeroDivisionError
        if turn.input == "hang":
            await asyncio.Event().wait()

    def inputs(self, turn: str) -> list[Any]:
        return [past.input for past in self.told[turn]]


async def play(instance: Instance, *inputs: str) -> None:
    """Turns t1, t2 ... one after the other."""
    for number, said in enumerate(inputs, 1):
        await instance.play(said, f"t{number}")


async def test_completed_turns_are_told_oldest_first(rig: Rig) -> None:
    agent = Asking()
    await play(rig.instance(agent), "a", "b", "c")
    assert agent.told["t3"] == [PastTurn("a", "to a", ()), PastTurn("b", "to b", ())]


async def test_the_first_turn_of_a_session_reads_nothing_of_its_past(rig: Rig) -> None:
    agent = Asking()
    instance = rig.instance(agent)
    await play(instance, "a")
    assert agent.told["t1"] == []
    assert "turns" not in instance.journal.calls


@pytest.mark.parametrize(
    ("limit", "told"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (3, ["a", "b", "c"]), (4, ["a", "b", "c"])]
)
async def test_no_more_than_the_newest_are_told(rig: Rig, limit: int, told: list[str]) -> None:
    agent = Asking(limit)
    await play(rig.instance(agent), "a", "b", "c", "d")
    assert agent.inputs("t4") == told


async def test_what_did_not_complete_is_not_told_and_takes_nobodys_place(rig: Rig) -> None:
    """However many of them there are behind the last that did."""
    agent = Asking(2)
    await play(rig.instance(agent), "a", "fail", "b", "fail", "fail", "c")
    assert agent.inputs("t6") == ["a", "b"]


async def test_a_turn_that_was_tried_again_is_not_told(rig: Rig) -> None:
    """Neither to the turn that tries it again nor to those after it."""
    agent = Asking()
    instance = rig.instance(agent)
    await play(instance, "a", "b")
    await instance.start("b again", "t3", retry_of="t2")
    await instance.ended("t3")
    await instance.play("c", "t4")
    assert (agent.inputs("t3"), agent.inputs("t4")) == (["a"], ["a", "b again"])


async def test_the_model_is_told_of_the_past_with_its_tools(rig: Rig) -> None:
    requests = list[ModelRequest]()

    class Watched(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            requests.append(request)
            async for event in super().stream(request):
                yield event

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    instance = rig.instance(Agent(model=Watched(), tools=[look]))
    await play(instance, "/tool look {}\n/say 1", "/say 1")
    first, asked, answered, last, now = requests[-1].messages
    assert (first, last) == (UserMessage("/tool look {}\n/say 1"), AssistantMessage("w1 "))
    assert isinstance(asked, AssistantMessage)
    assert [call.name for call in asked.calls] == ["look"]
    assert '"seen"' in repr(answered).replace("'", '"')
    assert now == UserMessage("/say 1")


@pytest.mark.parametrize(("partial", "kept"), [("keep", "to hang"), ("discard", None)])
async def test_the_text_of_an_interrupted_turn_is_kept_or_discarded(rig: Rig, partial: str, kept: str | None) -> None:
    """Its place in the session stays, marked as interrupted."""
    instance = rig.instance(Asking(), partial=partial)
    await instance.start("hang")
    await instance.shown("text.delta")
    await instance.gateway.cancel(KEY, "t1", "enough", "ann")
    record = await instance.ended()
    assert (record.status, record.partial) == ("interrupted", kept)
    (shown,) = (await instance.gateway.snapshot(KEY, None))["turns"]
    assert (shown["status"], shown.get("partial")) == ("interrupted", kept)


@pytest.mark.parametrize(("partial", "kept"), [("keep", "to fail"), ("discard", None)])
async def test_the_text_of_a_failed_turn_is_kept_or_discarded(rig: Rig, partial: str, kept: str | None) -> None:
    instance = rig.instance(Asking(), partial=partial)
    await play(instance, "fail")
    record = await instance.record()
    assert (record.status, record.partial) == ("failed", kept)
