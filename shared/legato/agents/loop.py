"""The agent of a model and tools: it asks the model, makes the calls it wants, and asks again, until it wants none."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from legato.agents import Call, PastTurn, Turn
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
from legato.text import clean, clean_json
from legato.tools import Outcome, Tool
from legato.turn import ToolState


@dataclass(frozen=True, slots=True)
class _Reply:
    """A model call's whole answer, as it is recorded; the vendor's own is in the message."""

    message: AssistantMessage
    finished: Finished


_REPLY: Final = TypeAdapter(_Reply)
CALLS_BYTES: Final = 1024 * 1024
"""What the arguments of one answer's calls may be together: they are stored twice, in the answer and in its calls."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A model, the tools it may call and what it is told. `max_steps` is how many model calls one turn may take,
    `history` how many completed turns before this one the model is told of.

    A model that gives nothing for `silence` seconds is given up. Raises TypeError when a tool is none, or two have the
    same name.
    """

    model: Model
    tools: Sequence[Tool] = ()
    instructions: str = ""
    max_steps: int = 32
    history: int = 20
    silence: float = 120
    name: str = "agent"

    def __post_init__(self) -> None:
        if not re.fullmatch(ID_PATTERN, self.name):
            raise TypeError(f"Agent: name is {self.name!r}, expected {ID_PATTERN}")
        if self.max_steps < 1:
            raise TypeError(f"Agent {self.name!r}: max_steps is {self.max_steps}, expected 1 or more")
        if self.history < 0:
            raise TypeError(f"Agent {self.name!r}: history is {self.history}, expected 0 or more")
        if not 0 < self.silence < math.inf:
            raise TypeError(f"Agent {self.name!r}: silence is {self.silence!r}, expected seconds above 0")
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"Agent {self.name!r}: {tool!r} is no tool; decorate it with @tool")
        twice = [name for name, times in Counter(tool.name for tool in self.tools).items() if times > 1]
        if twice:
            raise TypeError(f"Agent {self.name!r}: two tools are named {twice[0]!r}")

    async def __call__(self, turn: Turn) -> None:
        """Runs one turn. Raises ModelFailed, and Refused (`too_many_steps`) when the model never comes to an end."""
        messages = (*told(await turn.history(self.history)), UserMessage(turn.input))
        usage: Counter[str] = Counter()
        for step in count(1):
            reply, outcomes = await self._ask(turn, messages, last=step == self.max_steps)
            usage.update(reply.finished.usage or {})
            if not reply.message.calls:
                turn.finish(dict(usage), reply.finished.finish_reason)
                break
            messages += (reply.message, ToolMessage(tuple(map(Answer, reply.message.calls, outcomes))))

    async def _ask(self, turn: Turn, messages: tuple[Message, ...], last: bool) -> tuple[_Reply, list[Outcome]]:
        tools = {tool.name: tool for tool in self.tools}

        def wanted(result: JsonValue) -> list[Call]:
            calls = _REPLY.validate_python(result).message.calls
            if calls and last:
                text = f"after {self.max_steps} model calls the model still asks for tools (max_steps)"
                raise Refused("too_many_steps", text)
            return [Call(tools.get(call.name), call.name, call.arguments, call.problem) for call in calls]

        result, outcomes = await turn.exchange("model", partial(self._stream, turn, messages), wanted)
        return _REPLY.validate_python(result), outcomes

    async def _stream(self, turn: Turn, messages: tuple[Message, ...]) -> JsonValue:
        """One model call: says what it says, gives the whole answer."""
        specs = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in self.tools)
        text: list[str] = []
        calls: list[CallRequested] = []
        async with _closing(self.model.stream(ModelRequest(self.instructions, messages, specs))) as stream:
            while event := await self._next(stream):
                match event:
                    case TextChunk(chunk):
                        text.append(chunk)
                        await turn.text(chunk)
                    case ReasoningChunk(chunk):
                        await turn.reasoning(chunk)
                    case CallRequested():
                        calls.append(_keepable(event, calls))
                    case Finished():
                        message = AssistantMessage(clean("".join(text)), tuple(calls), event.vendor)
                        reply: JsonValue = _REPLY.dump_python(_Reply(message, replace(event, vendor=None)))
                        return reply
        raise ModelFailed("model_broken_off", "the model's stream ended before its answer was whole", retryable=True)

    async def _next(self, stream: AsyncIterator[ModelEvent]) -> ModelEvent | None:
        """None at the stream's end."""
        waiting = asyncio.timeout(self.silence)
        try:
            async with waiting:
                return await anext(stream, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            said = f"the model gave nothing for {self.silence:g} s (Agent.silence)"
            raise ModelFailed("model_silent", said, retryable=True) from None


def _keepable(call: CallRequested, before: Sequence[CallRequested]) -> CallRequested:
    """The call as it can be recorded with those before it: arguments that no journal holds are left out, and why."""
    try:
        arguments = clean_json(call.arguments)
    except ValueError as wrong:
        return replace(call, arguments=None, problem=str(wrong))
    size = sum(len(to_json(each.arguments)) for each in before) + len(to_json(arguments))
    if size > CALLS_BYTES:
        problem = f"with these arguments the answer's calls are {size} bytes of JSON, at most {CALLS_BYTES} fit"
        return replace(call, arguments=None, problem=problem)
    return replace(call, arguments=arguments)


def told(history: Sequence[PastTurn]) -> tuple[Message, ...]:
    """The past as a model is told of it: of each turn the input, what its tools gave, and the answer."""
    messages: list[Message] = []
    for past in history:
        messages.append(UserMessage(past.input))
        for _, tools in groupby(past.tools, key=lambda tool: tool.step):
            messages += _asked_and_answered(list(tools))
        messages.append(AssistantMessage(past.output))
    return tuple(messages)


def _asked_and_answered(tools: Sequence[ToolState]) -> tuple[Message, Message]:
    calls = tuple(CallRequested(tool.name, tool.arguments) for tool in tools)
    outcomes = (Outcome(tool.status == "ok", tool.content, tool.error) for tool in tools)
    return AssistantMessage("", calls), ToolMessage(tuple(map(Answer, calls, outcomes)))


@asynccontextmanager
async def _closing(stream: AsyncIterator[ModelEvent]) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
