"""The agents port: a turn as an agent sees it. `loop` is a model with tools, `adapt` takes what teams have today."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue

from legato.events import Usage
from legato.tools import Outcome, Tool
from legato.turn import ToolState


@dataclass(frozen=True, slots=True)
class Call:
    """A call to be made. `tool` is None when the model asked for a name that the agent has no tool of; a call with a
    `problem` is settled as `bad_arguments`."""

    tool: Tool | None
    name: str
    arguments: JsonValue
    problem: str | None = None


class PastTurn(NamedTuple):
    """A completed turn: what the model is told of the past. Tool records stand apart from the text."""

    input: JsonValue
    output: str
    tools: Sequence[ToolState]


class Turn(Protocol):
    """One turn as its agent sees it. What `text` and `reasoning` were given counts at once; awaiting them waits, in
    addition, while the journal is behind.

    When the instance is lost, another one enters the agent again, with what is recorded: finished steps and calls
    return at once, and what is said ahead of the last of them is not said again.
    """

    @property
    def id(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def uid(self) -> str:
        """Whose session it is; sessions of different principals may have the same id."""

    @property
    def input(self) -> JsonValue: ...

    @property
    def cancelled(self) -> bool: ...

    def text(self, text: str, /) -> Awaitable[None]:
        """Says `text`. Raises Refused (`text_too_large`)."""

    def reasoning(self, text: str, /) -> Awaitable[None]:
        """Shows `text` beside the answer; it never becomes part of it."""

    async def call(self, tool: Tool, /, **arguments: JsonValue) -> JsonValue:
        """Runs one tool and returns its content. Raises ToolFailed when it ended in an error, Refused inside a step."""

    async def calls(self, requests: Sequence[Call], /) -> list[Outcome]:
        """Runs tools side by side; all calls are in the journal before the first one starts. Outcomes in the order of
        `requests`: `unknown_tool` without a tool, `bad_arguments` where no journal can hold the arguments.

        Calls still running when their agent ends are torn down, a `once` tool is let finish first; after that nothing
        starts (Refused, `agent_ended`)."""

    async def step(self, name: str, work: Callable[[], Awaitable[Any]], /) -> Any:
        """Does a named piece of work once: its result, as JSON gives it back, and what it says are durable before this
        returns.

        A failure is a result: it is durable before it is raised, and raised again, without the work, when the agent is
        entered again. ModelFailed, ToolFailed and Refused are raised as such, whatever else the work raises as
        StepFailed. What the work has said by then stays. Where it raises a retryable ModelFailed it is done again
        first. Work that is cancelled is not recorded.

        A step is told from others by its name and occurrence; of branches that run side by side each names its own,
        and says what it says in its steps. Equal names are matched in the order in which they are asked for, which
        branches that are entered again need not keep. Raises Refused inside a step, for a result that is not JSON, and
        (`agent_diverged`) for a step that an agent entered again did not ask for before.
        """

    async def exchange(
        self, name: str, work: Callable[[], Awaitable[JsonValue]], calls: Callable[[JsonValue], Sequence[Call]], /
    ) -> tuple[JsonValue, list[Outcome]]:
        """A step and the tool calls that its result asks for: recorded together, before any of them starts. It fails
        as a step does."""

    async def history(self, limit: int, /) -> Sequence[PastTurn]:
        """The newest `limit` turns of the session that completed before this one, oldest first."""

    async def kept(self, limit: int, /) -> Sequence[JsonValue]:
        """What the newest `limit` completed turns before this one have kept, oldest first."""

    def keep(self, value: JsonValue, /) -> None:
        """Keeps `value` for later turns of the session, which `kept` gives it to once this turn completed. No client
        is told it. What `kept` did not give is kept no longer. Raises Refused for what is not JSON, or over 1 MiB."""

    def finish(self, usage: Usage, finish_reason: str) -> None:
        """Sets what `turn.completed` will carry; the turn ends when its agent returns."""


AgentFunction = Callable[[Turn], Awaitable[None]]
