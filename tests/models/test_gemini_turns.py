"""Turns with Gemini: what goes wrong on its wire is tried again or told, and its answers go back as they came."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.rig import PATIENCE, Rig, ends, types
from legato import Agent, tool
from legato.demo import lookup
from legato.models.gemini import Gemini
from legato.tools import Tool
from local_gemini import Answer, LocalGemini
from models.turn_contract import lose

TOLD = "w1 w2 w3 w4 "
SCRIPT = '/say 2\n/parallel lookup {"key": "a"} lookup {"key": "b"}\n/say 2'
ANSWERED = 5
"""The frames of its first answer: two words, two calls, the end."""


def agent(model: Gemini, *tools: Tool) -> Agent:
    return Agent(model=model, tools=[lookup, *tools])


@pytest.mark.parametrize("how", [{"cut": True, "torn": True}, {"status": 503}], ids=str)
async def test_a_turn_is_whole_whatever_the_frame_at_which_its_model_broke_off(
    rig: Rig, studio: Gemini, service: LocalGemini, how: Any
) -> None:
    """What was said of the broken answer is taken back first, and no call of it was made."""
    instance = rig.instance(agent(studio))
    for after in range(1, ANSWERED):
        service.befall(Answer(after=after, **how))
        turn = f"t{after}"
        await instance.start(SCRIPT, turn)
        record = await instance.ended(turn)
        assert (record.status, record.output) == ("completed", TOLD)
        assert [call.status for call in record.tools] == ["ok", "ok"]
    assert types(await instance.stored()).count("step.rewound") == ANSWERED - 1


async def test_the_delay_that_the_service_asks_for_is_kept(rig: Rig, studio: Gemini, service: LocalGemini) -> None:
    service.befall(Answer(status=429, retry_delay=0.7))
    instance = rig.instance(agent(studio))
    await instance.play("/say 4")
    assert (await instance.record()).output == TOLD
    first, second = service.seen
    assert second.at - first.at >= 0.7


async def test_an_answer_that_is_blocked_fails_the_turn_and_keeps_what_was_said(
    rig: Rig, studio: Gemini, service: LocalGemini
) -> None:
    said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "First, "}]}}]}
    service.befall(Answer(frames=[said, {"candidates": [{"finishReason": "SAFETY"}]}]))
    instance = rig.instance(agent(studio))
    (end,) = ends(await instance.play("how?"))
    assert (end.type, end.fields()["code"], end.fields()["retryable"]) == ("turn.failed", "model_blocked", False)
    assert (await instance.record()).partial == "First, "


async def test_an_input_that_cannot_be_read_fails_the_turn_and_asks_nobody(
    rig: Rig, studio: Gemini, service: LocalGemini
) -> None:
    (end,) = ends(await rig.instance(agent(studio)).play({"parts": [{"image": "?"}]}))
    assert (end.type, end.fields()["code"]) == ("turn.failed", "bad_input")
    assert not service.seen


async def test_a_slow_first_byte_is_waited_for(rig: Rig, studio: Gemini, service: LocalGemini) -> None:
    service.befall(Answer(first_byte=0.5))
    instance = rig.instance(agent(studio))
    await instance.play("/say 4")
    assert (await instance.record()).output == TOLD


async def test_another_instance_sends_the_answer_back_as_it_came(
    rig: Rig, studio: Gemini, service: LocalGemini
) -> None:
    """The service refuses an answer of this turn whose signature is missing."""
    holds, entered = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def wait() -> str:
        entered.set()
        await holds.wait()
        return "done"

    owner, other = (rig.instance(agent(studio, wait)) for _ in range(2))
    await owner.start("/think 1\n/say 2\n/tool wait\n/say 2")
    async with asyncio.timeout(PATIENCE):
        await entered.wait()
    await lose(owner, other)
    holds.set()
    record = await other.ended()
    assert (record.status, record.output) == ("completed", TOLD)
    assert len(service.seen) == 2
    assert "thoughtSignature" in service.seen[1].body["contents"][1]["parts"][-1]
