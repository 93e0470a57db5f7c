"""The demo agent under observation: it writes down what its model is asked and which calls enter a tool.

Servers take it by LEGATO_AGENT=chaos.witness:agent, or that of chaos.witness_gemini or chaos.witness_adk; it writes to
the file WITNESS, a JSON line for each thing it sees.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from legato import demo
from legato.agents import AgentFunction, Turn
from legato.models import Model, ModelEvent, ModelRequest, ToolMessage
from legato.models.scripted import ScriptedModel
from legato.tools import Outcome, Tool, ToolContext

ANSWER = 0.15


@dataclass(frozen=True, eq=False)
class Observed(Tool):
    """A tool whose calls are seen when they enter it. What `once` ones have done is told ANSWER seconds later, so that
    there are moments at which it is done and not recorded."""

    async def run(self, arguments: Any, context: ToolContext, **limits: Any) -> Outcome:
        note({"turn": context.key.rsplit("/", 1)[0], "entered": context.key})
        outcome = await super().run(arguments, context, **limits)
        await asyncio.sleep(ANSWER if self.effect == "once" else 0)
        return outcome


class Watched(NamedTuple):
    """A model whose requests of one turn are seen: the results in each, in their order."""

    model: Model
    turn: str

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answers = (message.answers for message in request.messages if isinstance(message, ToolMessage))
        note({"turn": self.turn, "asked": to_jsonable_python([answer for group in answers for answer in group])})
        async for event in self.model.stream(request):
            yield event


TOOLS = [Observed(**{part.name: getattr(tool, part.name) for part in fields(tool)}) for tool in demo.agent.tools]


def note(seen: dict[str, Any]) -> None:
    """One whole line, however many processes write at once."""
    file = os.open(os.environ["WITNESS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, json.dumps(seen).encode() + b"\n")
    finally:
        os.close(file)


def watching(model: Model) -> AgentFunction:
    async def agent(turn: Turn) -> None:
        await replace(demo.agent, tools=TOOLS, model=Watched(model, f"{turn.session}/{turn.id}"))(turn)

    return agent


agent = watching(ScriptedModel())
