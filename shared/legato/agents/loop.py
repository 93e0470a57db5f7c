"""The agent of a model and tools: it asks the model, makes the calls it wants, and asks again, until it wants none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from legato.agents import Call, Turn
from legato.errors import ModelFailed, Refused
from legato.events import ID_PATTERN
from legato.models import (
    Answer,
    AssistantMessage,
    CallRequested,
    Finished,
    Message,
    Model,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from legato.text import clean
from legato.tools import Tool


@dataclass(frozen=True, slots=True)
class _Reply:
    message: AssistantMessage
    finished: Finished


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A model, the tools it may call and what it is told. `max_steps` is how many model calls one turn may take.

    Raises TypeError when a tool is none, or two have the same name.
    """

    model: Model
    tools: Sequence[Tool] = ()
    instructions: str = ""
    max_steps: int = 32
    name: str = "agent"

    def __post_init__(self) -> None:
        if not re.fullmatch(ID_PATTERN, self.name):
            raise TypeError(f"Agent: name is {self.name!r}, expected {ID_PATTERN}")
        if self.max_steps < 1:
            raise TypeError(f"Agent {self.name!r}: max_steps is {self.max_steps}, expected 1 or more")
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"Agent {self.name!r}: {tool!r} is no tool; decorate it with @tool")
        twice = [name for name, times in Counter(tool.name for tool in self.tools).items() if times > 1]
        if twice:
            raise TypeError(f"Agent {self.name!r}: two tools are named {twice[0]!r}")

    async def __call__(self, turn: Turn) -> None:
        """Runs one turn. Raises ModelFailed, and Refused (`too_many_steps`) when the model never comes to an end."""
        messages: tuple[Message, ...] = (UserMessage(turn.input),)
        usage: Counter[str] = Counter()
        for step in count(1):
            reply = await self._ask(turn, messages)
            usage.update(reply.finished.usage or {})
            if not reply.message.calls:
                turn.finish(dict(usage), reply.finished.finish_reason)
                break
            if step == self.max_steps:
                raise Refused("too_many_steps", f"after {step} model calls the model still asks for tools (max_steps)")
            messages += (reply.message, await self._answers(turn, reply.message.calls))

    async def _ask(self, turn: Turn, messages: tuple[Message, ...]) -> _Reply:
        specs = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in self.tools)
        text: list[str] = []
        calls: list[CallRequested] = []
        async with _closing(self.model.stream(ModelRequest(self.instructions, messages, specs))) as stream:
            async for event in stream:
                match event:
                    case TextChunk(chunk):
                        text.append(chunk)
                        await turn.text(chunk)
                    case ReasoningChunk(chunk):
                        await turn.reasoning(chunk)
                    case CallRequested():
                        calls.append(event)
                    case Finished():
                        return _Reply(AssistantMessage(clean("".join(text)), tuple(calls), event.vendor), event)
        raise ModelFailed("model_broken_off", "the model's stream ended before its answer was whole", retryable=True)

    async def _answers(self, turn: Turn, calls: tuple[CallRequested, ...]) -> ToolMessage:
        tools = {tool.name: tool for tool in self.tools}
        wanted = [Call(tools.get(call.name), call.name, call.arguments) for call in calls]
        outcomes = await turn.calls(wanted)
        return ToolMessage(tuple(map(Answer, calls, outcomes)))


@asynccontextmanager
async def _closing(stream: AsyncIterator[ModelEvent]) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
