"""Agents of ADK that follow the scripts of `models.scripted`, and tools that write down what they have done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel

from legato.agents.adk import AdkAgent, Rule, this_call
from local_gemini import LocalGemini

Ledger = dict[str, int]
"""What was transferred, by the key of its call."""


class Transferred(BaseModel):
    transferred: int


class Kit:
    """`ledger` is outside of all instances, as the callee of a tool is."""

    def __init__(self, service: LocalGemini) -> None:
        self.service = service
        self.llm = Gemini(base_url=service.url, client_kwargs={"api_key": "k"})
        self.ledger: Ledger = {}
        self.entered: list[str] = []

    def agent(self, name: str = "root", tools: Sequence[Any] = (), **more: Any) -> LlmAgent:
        return LlmAgent(name=name, model=self.llm, tools=list(tools), **more)

    def made(self, agent: Any = None, **more: Any) -> AdkAgent:
        """Each instance is given agents of its own, as each process has them."""
        rules = {
            "lookup": Rule(effect="read"),
            "remember": Rule(effect="idempotent"),
            "transfer": Rule(timeout=2, reconcile=self.reconcile),
        }
        return AdkAgent(agent or self.agent(tools=self.tools), **{"rules": rules, **more})

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return [self.lookup, self.remember, self.transfer]

    async def lookup(self, key: str) -> dict[str, str]:
        """Looks a key up."""
        self.entered.append(this_call().key)
        return {"value": f"the value of {key}"}

    async def transfer(self, amount: int) -> Transferred:
        """Transfers an amount, once."""
        key = this_call().key
        self.entered.append(key)
        assert key not in self.ledger
        self.ledger[key] = amount
        await asyncio.sleep(0)
        return Transferred(transferred=amount)

    async def remember(self, amount: int, tool_context: ToolContext) -> int:
        """Adds to what the session has spent."""
        tool_context.state["spent"] = tool_context.state.get("spent", 0) + amount
        return int(tool_context.state["spent"])

    def reconcile(self, key: str) -> Transferred | None:
        return Transferred(transferred=self.ledger[key]) if key in self.ledger else None


def words(number: int) -> str:
    return "".join(f"w{n} " for n in range(1, number + 1))
