"""The demo agent as one of ADK, with the same tools; its model finds the service by the SDK's own settings."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.adk.tools.tool_context import ToolContext

from legato import demo
from legato.agents.adk import AdkAgent, Rule, this_call

RULES = {
    "lookup": Rule(effect="read"),
    "slow": Rule(effect="idempotent", timeout=3700),
    "transfer": Rule(timeout=5, reconcile=demo.entered),
}


async def lookup(key: str) -> dict[str, str]:
    """Looks a key up."""
    return {"key": key, "value": f"the value of {key}"}


async def slow(seconds: float) -> dict[str, float]:
    """Takes its time."""
    done: dict[str, float] = await demo.slow(seconds, turn=this_call())
    return done


async def transfer(amount: int, seconds: float = 0) -> dict[str, Any]:
    """Transfers an amount, once."""
    entry: demo.Entry = await demo.transfer(amount, seconds, key=this_call().key)
    return entry.model_dump()


async def remember(amount: int, tool_context: ToolContext) -> int:
    """Adds to what the session has spent."""
    tool_context.state["spent"] = tool_context.state.get("spent", 0) + amount
    return int(tool_context.state["spent"])


agent = AdkAgent(LlmAgent(name="demo", model=Gemini(), tools=[lookup, slow, transfer, remember]), rules=RULES)
