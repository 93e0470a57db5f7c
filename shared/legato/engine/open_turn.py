"""The turn as an agent is given it: text, tool calls, steps. Implements `agents.Turn` over a Writer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from pydantic import JsonValue
from pydantic_core import to_json

from legato.agents import Call
from legato.engine.lease import Holding
from legato.engine.writer import Writer
from legato.errors import Refused, ToolFailed
from legato.events import ErrorInfo, ReasoningDelta, TextDelta, ToolCall, ToolProgress, ToolResult, Usage
from legato.journal import SessionKey
from legato.text import Surrogates, brief, clean_json
from legato.tools import Outcome, Tool, ToolContext

log = logging.getLogger("legato.engine")
T = TypeVar("T")
PROGRESS_SECONDS = 0.1
_INSIDE: ContextVar[str | None] = ContextVar("the step that runs in this task", default=None)


class OpenTurn:
    """One running turn. Everything here raises LeaseLost once another instance has the session."""

    def __init__(self, key: SessionKey, writer: Writer, holding: Holding, text_bytes: int, result_bytes: int) -> None:
        self.session = key.session
        self._at = 1
        self.cancelled = False
        self.usage: Usage = {}
        self.finish_reason = "stop"
        self.holds_once = 0
        self._writer = writer
        self._holding = holding
        self._room = {TextDelta: text_bytes, ReasoningDelta: text_bytes}
        self._result_bytes = result_bytes
        self._said = Surrogates()
        self._thought = Surrogates()
        self._numbered = 0
        self._running = 0
        self._over = False
        self._settling: set[asyncio.Task[Outcome]] = set()

    @property
    def id(self) -> str:
        return self._writer.turn

    @property
    def input(self) -> JsonValue:
        return self._writer.state.input

    def text(self, text: str) -> Awaitable[None]:
        """Extends the answer, at once; awaiting it also waits while the journal is behind. Raises Refused."""
        self._show(TextDelta, self._said.feed(text))
        return _Ready(self._writer)

    def reasoning(self, text: str) -> Awaitable[None]:
        """Like `text`, for what is not part of the answer."""
        self._show(ReasoningDelta, self._thought.feed(text))
        return _Ready(self._writer)

    def close_text(self) -> None:
        """Half a surrogate pair that found no other half is shown as U+FFFD."""
        self._show(TextDelta, self._said.end())
        self._show(ReasoningDelta, self._thought.end())

    def finish(self, usage: Usage, finish_reason: str) -> None:
        """What `turn.completed` will carry besides the text. Counts that no store can hold are left out."""
        counts = {brief(kind): int(tokens) for kind, tokens in usage.items()}
        self.usage = {kind: tokens for kind, tokens in counts.items() if _holdable(kind, tokens)}
        if left_out := sorted(counts.keys() - self.usage.keys()):
            log.warning("turn %s: these kinds of usage cannot be stored and are left out: %s", self.id, left_out)
        self.finish_reason = brief(finish_reason)

    async def call(self, tool: Tool, /, **arguments: Any) -> JsonValue:
        """Runs one tool and gives back its content. Raises ToolFailed with the tool's error."""
        (outcome,) = await self.calls([Call(tool, tool.name, arguments)])
        if outcome.error:
            raise ToolFailed(outcome.error.code, outcome.error.message)
        return outcome.content

    async def calls(self, requests: Sequence[Call]) -> list[Outcome]:
        """Runs tools side by side. All their `tool.call`s are durable in one Commit before any of them starts."""
        if step := _INSIDE.get():
            raise Refused("call_in_step", f"turn.call inside turn.step({step!r}): call the tool outside it")
        self._refuse_when_over()
        if not requests:
            return []
        with self._running_here():
            self.close_text()
            intents = [self._intend(request) for request in requests]
            await self._writer.commit(*(intent.call for intent in intents))
            self._refuse_when_over()
            tasks = [asyncio.ensure_future(self._settle(intent)) for intent in intents]
            self._settling.update(tasks)
            try:
                return await _together(tasks)
            finally:
                self._settling.difference_update(tasks)

    async def close(self) -> None:
        """The agent has ended: no tool starts any more, and calls that it left running are torn down as by a cancel.

        Returns when each has ended, a `once` tool with its result recorded.
        """
        self._over = True
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    def _refuse_when_over(self) -> None:
        if self._over:
            raise Refused("agent_ended", "the agent has ended and its turn starts no tool; await each call before that")

    async def step(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Runs a named piece of work; what it says is durable before it returns."""
        if step := _INSIDE.get():
            raise Refused("step_in_step", f"turn.step({name!r}) inside turn.step({step!r}): put one after the other")
        inside = _INSIDE.set(name)
        try:
            with self._running_here():
                result = await work()
                self.close_text()
                await self._writer.flush()
                return result
        finally:
            _INSIDE.reset(inside)

    def _show(self, kind: type[TextDelta | ReasoningDelta], text: str) -> None:
        if not text:
            return
        self._room[kind] -= len(to_json(text)) - 2
        if self._room[kind] < 0:
            what = "text" if kind is TextDelta else "reasoning"
            raise Refused(
                f"{what}_too_large", f"the turn's {what} is over its limit (LEGATO_TEXT_BYTES); end it earlier"
            )
        self._writer.show(kind(step=self._at, text=text))

    @contextmanager
    def _running_here(self) -> Iterator[None]:
        """While calls and steps run side by side, what is said belongs to one step; the next begins after the last."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._at += 1
                self._numbered = 0

    def _intend(self, request: Call) -> _Intent:
        self._numbered += 1
        arguments, problem = _told(request.arguments, self._result_bytes)
        call = ToolCall(
            step=self._at,
            call=f"{self._at}-{self._numbered}",
            name=brief(request.name),
            arguments=arguments,
            effect=request.tool.effect if request.tool else "read",
        )
        return _Intent(call, request.tool, problem)

    async def _settle(self, intent: _Intent) -> Outcome:
        if intent.problem:
            outcome = Outcome.failed("bad_arguments", intent.problem)
        else:
            outcome = await self._run(intent.call, intent.tool)
        await self._record(intent.call, outcome)
        return outcome

    async def _run(self, intent: ToolCall, tool: Tool | None) -> Outcome:
        if tool is None:
            return Outcome(False, error=ErrorInfo(code="unknown_tool", message=f"there is no tool {intent.name!r}"))
        await self._holding.assure()
        key = f"{self.session}/{self.id}/{intent.call}"
        context = ToolContext(key, _Progress(self._writer, intent.call), lambda: self.cancelled)
        running = asyncio.ensure_future(tool.run(intent.arguments, context, result_bytes=self._result_bytes))
        if tool.effect != "once":
            return await running
        self.holds_once += 1
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # What has begun and may not be repeated is let finish, within its own timeout, and recorded.
            await _ended(running)
            await self._record(intent, running.result())
            raise
        finally:
            self.holds_once -= 1

    async def _record(self, intent: ToolCall, outcome: Outcome) -> None:
        result = ToolResult(call=intent.call, ok=outcome.ok, content=outcome.content, error=outcome.error)
        await self._writer.commit(result)


class _Intent(NamedTuple):
    """A call as it goes into the journal; `problem` says why its arguments are not there, and it is not made."""

    call: ToolCall
    tool: Tool | None
    problem: str | None


def _told(arguments: JsonValue, limit: int) -> tuple[JsonValue, str | None]:
    """What the journal says of a call's arguments; null, and why, where no journal can hold them."""
    try:
        clean = clean_json(arguments)
    except ValueError as wrong:
        return None, str(wrong)
    size = _size(clean)
    return (clean, None) if size <= limit else (None, f"the arguments are {size} bytes of JSON, at most {limit} fit")


def _size(value: JsonValue) -> int:
    """Bytes of JSON as an event has it, where U+2028 and U+2029 are escaped."""
    data = to_json(value)
    return len(data) + 3 * (data.count(b"\xe2\x80\xa8") + data.count(b"\xe2\x80\xa9"))


def _holdable(kind: str, tokens: int) -> bool:
    """A field of a Firestore map: a name of 1 to 1,500 bytes that is not reserved, an integer of 64 bits."""
    return 0 < len(kind.encode()) <= 1500 and not re.fullmatch("__.*__", kind, re.DOTALL) and -(2**63) <= tokens < 2**63


class _Ready:
    """Awaitable that waits for the journal; not awaiting it is no fault."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __await__(self) -> Generator[Any, None, None]:
        if not self._writer.ready:
            yield from self._writer.caught_up().__await__()


class _Progress:
    """A call's progress events, at most one in PROGRESS_SECONDS; those in between are not kept."""

    def __init__(self, writer: Writer, call: str) -> None:
        self._writer = writer
        self._call = call
        self._next = 0.0

    def __call__(self, message: str | None, fraction: float | None) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next or self._writer.state.ended:
            return
        self._next = now + PROGRESS_SECONDS
        self._writer.show(ToolProgress(call=self._call, message=message, fraction=fraction))


async def _ended(*tasks: asyncio.Task[T]) -> None:
    """Returns when all have ended, however often whoever waits is cancelled; their own timeouts bound the wait."""
    while not all(task.done() for task in tasks):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


async def _together(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """What all of `tasks` give; when cancelled, cancels each and waits until each has ended."""
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await _ended(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        raise
    return [task.result() for task in tasks]
