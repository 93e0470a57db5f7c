"""Turns with Gemini: what goes wrong on its wire is tried again or told, and what stops a turn reaches the wire."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Instance, Rig, ends, eventually, types
from legato import Agent, tool
from legato.demo import lookup
from legato.models.gemini import Gemini
from legato.tools import Tool
from local_gemini import Answer, LocalGemini, Seen

TOLD = "w1 w2 w3 w4 "
SCRIPT = '/say 2\n/parallel lookup {"key": "a"} lookup {"key": "b"}\n/say 2'
ANSWERED = 5
"""The frames of its first answer: two words, two calls, the end."""


def agent(model: Gemini, *tools: Tool, **more: Any) -> Agent:
    return Agent(model=model, tools=[lookup, *tools], **more)


async def gone(seen: Seen) -> bool:
    """The service has seen the client leave before its end."""
    async with asyncio.timeout(PATIENCE):
        await seen.ended.wait()
    return seen.left


async def silent(seen: Seen) -> int:
    """The frames of a request that takes no more of them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            before = seen.frames
            await asyncio.sleep(0.2)
            if before == seen.frames > 0:
                return before


class TestTriedAgain:
    @pytest.mark.parametrize("how", [{"cut": True}, {"cut": True, "torn": True}, {"status": 503}], ids=str)
    async def test_a_turn_is_whole_whatever_the_frame_at_which_its_model_broke_off(
        self, rig: Rig, studio: Gemini, service: LocalGemini, how: Any
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

    async def test_the_delay_that_the_service_asks_for_is_kept(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        service.befall(Answer(status=429, retry_delay=0.7))
        instance = rig.instance(agent(studio))
        await instance.play("/say 4")
        assert (await instance.record()).output == TOLD
        first, second = service.seen
        assert second.at - first.at >= 0.7

    @pytest.mark.parametrize("answer", [Answer(after=2, cut=True), Answer(after=2, cut=True, clean=True)], ids=str)
    async def test_a_model_that_always_breaks_off_never_completes_a_turn(
        self, rig: Rig, studio: Gemini, service: LocalGemini, answer: Answer
    ) -> None:
        service.befall(*[answer] * 2)
        instance = rig.instance(agent(studio), model_retries=1)
        (end,) = ends(await instance.play("/say 4"))
        assert (end.type, end.fields()["code"], end.fields()["retryable"]) == ("turn.failed", "model_broken_off", True)
        assert (await instance.record()).partial == "w1 w2 "

    async def test_an_answer_that_is_blocked_fails_the_turn_and_keeps_what_was_said(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "First, "}]}}]}
        service.befall(Answer(frames=[said, {"candidates": [{"finishReason": "SAFETY"}]}]))
        instance = rig.instance(agent(studio))
        (end,) = ends(await instance.play("how?"))
        assert (end.type, end.fields()["code"], end.fields()["retryable"]) == ("turn.failed", "model_blocked", False)
        assert (await instance.record()).partial == "First, "

    async def test_an_input_that_cannot_be_read_fails_the_turn_and_asks_nobody(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        (end,) = ends(await rig.instance(agent(studio)).play({"parts": [{"image": "?"}]}))
        assert (end.type, end.fields()["code"]) == ("turn.failed", "bad_input")
        assert not service.seen


class TestReachesTheWire:
    @pytest.mark.parametrize("answer", [Answer(), Answer(first_byte=math.inf)], ids=["in-mid-answer", "before-it"])
    async def test_a_cancel_closes_the_models_stream(
        self, rig: Rig, studio: Gemini, service: LocalGemini, answer: Answer
    ) -> None:
        service.befall(answer)
        instance = rig.instance(agent(studio))
        await instance.start("/say 2\n/sleep 60")
        seen = await service.request(0)
        await eventually(lambda: seen.frames == 2 or answer.first_byte > 0)
        await instance.engine.cancel(KEY, "t1", "enough", "ann")
        assert await gone(seen)
        assert (await instance.ended()).status == "interrupted"

    async def test_a_silent_model_is_given_up_and_its_stream_closed(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        service.befall(Answer(first_byte=math.inf))
        instance = rig.instance(agent(studio, silence=0.2), model_retries=0)
        (end,) = ends(await instance.play("/say 2"))
        assert end.fields()["code"] == "model_silent"
        assert await gone(service.seen[0])

    async def test_a_slow_first_byte_is_waited_for(self, rig: Rig, studio: Gemini, service: LocalGemini) -> None:
        service.befall(Answer(first_byte=0.5))
        instance = rig.instance(agent(studio))
        await instance.play("/say 4")
        assert (await instance.record()).output == TOLD

    async def test_a_client_that_does_not_read_stops_the_service_until_it_reads_on(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        """The frames are large, so that buffers on the way hold few of them."""
        word = {"candidates": [{"content": {"role": "model", "parts": [{"text": "w "}]}}], "responseId": "x" * 16_000}
        last = {"candidates": [{"finishReason": "STOP"}]}
        service.befall(Answer(frames=[word] * 999 + [last]))
        instance = rig.instance(agent(studio), ahead_bytes=8192)
        frames = instance.gateway.attach(KEY, await instance.start("go")).frames()
        await anext(frames)
        assert await silent(await service.request(0)) < 1000
        async with asyncio.timeout(PATIENCE):
            async for _ in frames:
                pass
        assert (await instance.record()).output == "w " * 999


class TestEnteredAgain:
    async def test_another_instance_sends_the_answer_back_as_it_came(
        self, rig: Rig, studio: Gemini, service: LocalGemini
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
        await lose(owner, other, entered)
        holds.set()
        record = await other.ended()
        assert (record.status, record.output) == ("completed", TOLD)
        assert len(service.seen) == 2
        assert "thoughtSignature" in service.seen[1].body["contents"][1]["parts"][-1]

    async def test_the_owners_stream_is_closed_when_it_has_lost_the_turn(
        self, rig: Rig, studio: Gemini, service: LocalGemini
    ) -> None:
        instance = rig.instance(agent(studio))
        await instance.start("/say 2\n/sleep 60")
        seen = await service.request(0)
        await instance.engine.close()
        assert await gone(seen)


async def lose(owner: Instance, other: Instance, at: asyncio.Event) -> None:
    """The owner is cut off from its journal at that moment, and its lease runs out before `other` takes over."""
    async with asyncio.timeout(PATIENCE):
        await at.wait()
    await owner.live().writer.flush()
    owner.journal.refuse()
    other.clock.advance(3600)
    await other.engine.take_over(KEY)
