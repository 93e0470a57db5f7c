"""An agent whose tools call a service with a credential, which a token endpoint gives; both at ISSUER."""

from __future__ import annotations

import asyncio
import os

import httpx

from legato.agents.loop import Agent
from legato.credentials.google import refresh_token
from legato.models.scripted import ScriptedModel
from legato.tools import ToolContext, tool

ISSUER = os.environ.get("ISSUER", "")


@tool(effect="once")
async def ask(seconds: float, *, turn: ToolContext) -> int:
    """Takes its time, then asks the service."""
    await asyncio.sleep(seconds)
    async with httpx.AsyncClient(auth=turn.credentials("service"), trust_env=False) as http:
        return (await http.post(f"{ISSUER}/api")).status_code


@tool(effect="once")
def ask_in_a_thread(*, turn: ToolContext) -> int:
    """Asks the service."""
    with httpx.Client(auth=turn.credentials("service"), trust_env=False) as http:
        return http.post(f"{ISSUER}/api").status_code


agent = Agent(model=ScriptedModel(), tools=[ask, ask_in_a_thread], max_steps=100)
credentials = {"service": refresh_token("refresh-secret", "id", "client-secret", f"{ISSUER}/token")}
