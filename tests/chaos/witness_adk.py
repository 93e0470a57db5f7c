"""The agent under observation as one of ADK."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import Gemini

from chaos.lives import TURN
from chaos.witness import ANSWER, note
from e2e import adks
from legato.agents.adk import AdkAgent, this_call


def observed(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """As `witness.Observed`."""

    @functools.wraps(tool)
    async def seen(**arguments: Any) -> Any:
        key = this_call().key
        note({"turn": key.rsplit("/", 1)[0], "entered": key})
        result = await tool(**arguments)
        await asyncio.sleep(ANSWER if adks.RULES[tool.__name__].effect == "once" else 0)
        return result

    return seen


def asked(callback_context: Any, llm_request: Any) -> None:
    parts = [part for content in llm_request.contents for part in content.parts or []]
    results = [part.function_response.response for part in parts if part.function_response]
    note({"turn": f"{callback_context.session.id}/{TURN}", "asked": results})


tools = [observed(tool) for tool in (adks.lookup, adks.slow, adks.transfer)]
root = LlmAgent(name="demo", model=Gemini(), tools=tools, before_model_callback=asked)
agent = AdkAgent(root, rules=adks.RULES)
