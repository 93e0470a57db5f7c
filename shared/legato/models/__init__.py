"""The models port: what the agent loop asks of a model, in no vendor's words. `scripted` is the one without a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from legato.events import Usage
from legato.tools import Outcome


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TextChunk:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningChunk:
    text: str


@dataclass(frozen=True, slots=True)
class CallRequested:
    """The model asks for a tool. `vendor_id` is the vendor's own name for the call and goes back to it alone.

    `problem` says why the arguments are not here: the call is not made, and the model is told.
    """

    name: str
    arguments: JsonValue
    vendor_id: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a whole answer. `usage` counts tokens by kind; `vendor` is the vendor's own message, as it came."""

    finish_reason: str = "stop"
    usage: Usage | None = None
    vendor: JsonValue = None


ModelEvent = TextChunk | ReasoningChunk | CallRequested | Finished


@dataclass(frozen=True, slots=True)
class UserMessage:
    content: JsonValue


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What one model call answered; `vendor` is what its `Finished` carried."""

    text: str
    calls: tuple[CallRequested, ...] = ()
    vendor: JsonValue = None


class Answer(NamedTuple):
    """The outcome of one call that the model asked for."""

    call: CallRequested
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The outcomes of all calls of the assistant's message before it, in the order in which it asked."""

    answers: tuple[Answer, ...]


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ModelRequest:
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class Model(Protocol):
    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One model call. A stream that ends without `Finished` has broken off. Raises ModelFailed.

        The loop closes it (`aclose`) however the call ends; a model that is an async generator tears its request down
        in a `finally`.
        """
