"""A model call of ADK that goes wrong, or is stopped: tried again where that can help, and never taken for whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Content, FunctionCall, Part

from adk_agents.kit import Kit, words
from engine.rig import KEY, PATIENCE, Instance, Rig
from legato.journal import TurnRecord
from local_gemini import Answer


async def ended(one: Instance, said: str) -> TurnRecord:
    await one.start(said)
    return await one.ended()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_model_that_is_busy_is_asked_again_when_it_says(rig: Rig, kit: Kit, status: int) -> None:
    kit.service.befall(Answer(status=status, retry_delay=0.05))
    record = await ended(rig.instance(kit.made()), "/say 2")
    assert (record.output, len(kit.service.seen)) == (words(2), 2)


async def test_an_answer_is_read_however_its_bytes_are_cut_and_however_late_they_come(rig: Rig, kit: Kit) -> None:
    one = rig.instance(kit.made())
    for number, piece in enumerate([1, 2, 3, 7, 64, 1000], 1):
        kit.service.befall(*[Answer(piece=piece, first_byte=0.2)] * 2)
        await one.start('/think 1\n/say 2\n/tool lookup {"key": "ü"}\n/say 1', f"t{number}")
        record = await one.ended(f"t{number}")
        assert (record.output, [tool.arguments for tool in record.tools]) == (words(3), [{"key": "ü"}])


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("how", [{"torn": True}, {"clean": True}, {}], ids=["torn", "clean", "between"])
async def test_an_answer_that_breaks_off_is_never_whole(rig: Rig, kit: Kit, after: int, how: dict[str, Any]) -> None:
    kit.service.befall(Answer(after=after, cut=True, **how))
    record = await ended(rig.instance(kit.made(), model_retries=0), "/say 3")
    assert (record.status, record.output) == ("failed", None)
    assert record.error
    assert record.error["code"] == "model_broken_off"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"candidates": [{"content": {"parts": []}, "finishReason": "SAFETY"}]}, "model_blocked"),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "model_blocked"),
        ({"candidates": [{"content": {"parts": []}, "finishReason": "OTHER"}]}, "model_stopped"),
    ],
)
async def test_an_answer_that_was_blocked_fails_the_turn(rig: Rig, kit: Kit, frame: Any, code: str) -> None:
    kit.service.befall(Answer(frames=[frame]))
    record = await ended(rig.instance(kit.made()), "/say 2")
    assert record.error
    assert record.error["code"] == code


class Plain(BaseLlm):
    """Another vendor's: it streams nothing and names no call."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        called = any(part.function_call for part in parts)
        part = Part(text="done") if called else Part(function_call=FunctionCall(name="look", args={}))
        yield LlmResponse(content=Content(role="model", parts=[part]))


async def test_a_call_that_its_vendor_has_not_named_has_a_name_that_is_recorded(rig: Rig, kit: Kit) -> None:
    named: list[str | None] = []

    async def look(tool_context: ToolContext) -> None:
        """Looks at its own name."""
        named.append(tool_context.function_call_id)

    one = rig.instance(kit.made(LlmAgent(name="root", model=Plain(model="plain"), tools=[look])))
    await one.play("look")
    assert (await one.record()).output == "done"
    steps = await one.journal.private(KEY, "t1", one.clock())
    assert f'"id":"{named[0]}"' in steps["step.root.1"]


async def test_an_answer_that_was_cut_short_says_so(rig: Rig, kit: Kit) -> None:
    frame = {"candidates": [{"content": {"role": "model", "parts": [{"text": "half"}]}, "finishReason": "MAX_TOKENS"}]}
    kit.service.befall(Answer(frames=[frame]))
    record = await ended(rig.instance(kit.made()), "/say 2")
    assert (record.output, record.finish_reason) == ("half", "max_tokens")


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")  # it is ADK that uses it
async def test_a_cancel_reaches_the_model_of_an_agent_used_as_a_tool(rig: Rig, kit: Kit) -> None:
    one = rig.instance(kit.made(kit.agent(tools=[AgentTool(kit.agent("inner"))])))
    await one.start('/say 1\n/tool inner {"request": "/sleep 60"}\n/say 1')
    inner = await kit.service.request(1)
    await one.gateway.cancel(KEY, "t1", "enough", "ann")
    assert (await one.ended()).status == "interrupted"
    await asyncio.wait_for(inner.ended.wait(), PATIENCE)
    assert inner.left


async def test_a_cancel_tears_down_what_may_run_again_and_lets_a_once_tool_finish(rig: Rig, kit: Kit) -> None:
    entered, torn, opened = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lookup(key: str) -> None:
        """Waits for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            torn.set()

    async def pay() -> str:
        """Takes its time."""
        entered.set()
        await opened.wait()
        return "paid"

    one = rig.instance(kit.made(kit.agent(tools=[lookup, pay])))
    await one.start('/parallel lookup {"key": "a"} pay {}\n/say 1')
    await asyncio.wait_for(entered.wait(), PATIENCE)
    await one.gateway.cancel(KEY, "t1", "enough", "ann")
    await asyncio.wait_for(torn.wait(), PATIENCE)
    opened.set()
    record = await one.ended()
    assert record.status == "interrupted"
    assert [(tool.name, tool.status, tool.content) for tool in record.tools] == [
        ("lookup", "unsettled", None),
        ("pay", "ok", "paid"),
    ]


async def test_a_sync_tool_that_is_given_up_is_in_doubt_while_its_thread_is_at_work(rig: Rig, kit: Kit) -> None:
    """Nothing can stop it: what becomes of it is not known when its time is over."""
    import threading

    from legato.agents.adk import Rule

    opened = threading.Event()

    def pay() -> str:
        """Takes its time."""
        opened.wait(PATIENCE)
        return "paid"

    made = kit.made(kit.agent(tools=[pay]), rules={"pay": Rule(timeout=0.05)})
    one = rig.instance(made)
    await one.start("/tool pay {}\n/say 1")
    try:
        asked = await one.shown("approval.requested")
        assert asked.fields()["kind"] == "in_doubt"
    finally:
        opened.set()
