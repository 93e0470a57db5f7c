"""The turn as an agent is given it: text, tool calls, steps. Implements `agents.Turn` over a Writer.

An agent that is entered again gets what is recorded: finished steps and calls return at once, what it says meanwhile
has been said, and it goes on behind the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

from legato.agents import Call, PastTurn
from legato.engine.allowing import judged
from legato.engine.calls import Calls, Intent, cost, together
from legato.engine.failures import UNRECORDED, Failure
from legato.engine.kept import Kept
from legato.engine.past import Past, Recorded, as_recorded, room_beside, text_of
from legato.engine.records import Origin
from legato.engine.runtime import Runtime, persist
from legato.engine.writer import Writer
from legato.errors import ModelFailed, Refused, ToolFailed
from legato.events import ReasoningDelta, StepRewound, TextDelta, Usage
from legato.foreign import cancelled
from legato.journal import Private, SessionKey
from legato.principal import Principal
from legato.text import Surrogates, brief
from legato.tools import Outcome, Tool

log = logging.getLogger("legato.engine")
RETRY_SECONDS: Final = 0.5
"""The first pause before a step whose model failed for a moment is tried again; each further one is twice as long."""
RETRY_AFTER_SECONDS: Final = 60.0
"""The longest delay of a model's own that a step waits for; where it names a longer one the turn fails, retryable."""
CATCH_UP_SECONDS: Final = 3.0
"""How long an agent that is entered again may take to ask for all that is recorded, once it asks for something else."""


class _Inside(NamedTuple):
    """The step that runs in this task."""

    name: str
    number: int


_INSIDE: ContextVar[_Inside | None] = ContextVar("the step that runs in this task", default=None)


class OpenTurn:
    """One running turn. Everything here raises LeaseLost once another instance has the session."""

    def __init__(
        self, runtime: Runtime, key: SessionKey, writer: Writer, calls: Calls, past: Past, origin: Origin
    ) -> None:
        """What came before the `origin` is the turn's history."""
        self.uid, self.session = key
        self.usage: Usage = {}
        self.finish_reason = "stop"
        self._runtime = runtime
        self._key = key
        self._writer = writer
        self._calls = calls
        self._past = past
        self._first = origin.first
        self._retry_of = origin.retry_of
        self._kept = Kept(runtime, key, writer.turn, origin)
        self._next = past.front
        self._caught_up = asyncio.Event()
        self._look_back()
        self._room = _room(writer, runtime.settings.text_bytes)
        self._said = Surrogates()
        self._thought = Surrogates()
        self._over = False
        self._settling: set[asyncio.Task[Outcome]] = set()
        self._unsaved: list[Private] = []

    @property
    def id(self) -> str:
        return self._writer.turn

    @property
    def input(self) -> JsonValue:
        return self._writer.state.input

    @property
    def cancelled(self) -> bool:
        return self._calls.cancelled or self._over

    async def history(self, limit: int) -> list[PastTurn]:
        """The newest `limit` completed turns before this one, oldest first, without those that were tried again."""
        past: list[PastTurn] = []
        replaced, before, more = {self._retry_of}, self._first, self._first > 1
        while more and len(past) < limit:
            records = await persist(self._runtime.journal.turns, self._key, before, limit)
            replaced |= {record.retry_of for record in records}
            past = [
                PastTurn(record.input, record.output or "", record.tools)
                for record in records
                if record.status == "completed" and record.turn not in replaced
            ] + past
            before, more = records[0].first if records else 0, len(records) == limit
        return past[-limit:] if limit else []

    async def kept(self, limit: int) -> list[JsonValue]:
        """What the newest `limit` completed turns before this one have kept, oldest first."""
        return await self._kept.read(limit)

    def keep(self, value: JsonValue) -> None:
        """Keeps `value` for later turns, once this one has completed. Raises Refused."""
        self._kept.keep(value)

    def left(self) -> tuple[Private, ...]:
        """What goes with the turn's completion."""
        return self._kept.documents()

    def text(self, text: str) -> Awaitable[None]:
        """Extends the answer, at once; awaiting it also waits while the journal is behind, or the client that started
        the turn. Raises Refused."""
        self._show(TextDelta, self._said, text)
        return _Ready(self._writer)

    def reasoning(self, text: str) -> Awaitable[None]:
        """Like `text`, for what is not part of the answer."""
        self._show(ReasoningDelta, self._thought, text)
        return _Ready(self._writer)

    def close_text(self) -> None:
        """Half a surrogate pair that found no other half is shown as U+FFFD."""
        self._extend(TextDelta, self._said.end())
        self._extend(ReasoningDelta, self._thought.end())

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
        self._refuse_inside("turn.call", "call the tool outside it")
        self._refuse_when_over()
        await self._save()
        return await self._make(requests, None, self._runtime.settings.result_bytes) if requests else []

    async def step(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Does a named piece of work once; its result, as JSON, and what it says are durable before it returns."""
        self._refuse_inside(f"turn.step({name!r})", "put one after the other")
        key, known = self._past.step(name)
        self._look_back()
        return known.given() if known else (await self._do(key, name, work, alone=True)).result

    async def exchange(
        self, name: str, work: Callable[[], Awaitable[JsonValue]], calls: Callable[[JsonValue], Sequence[Call]]
    ) -> tuple[JsonValue, list[Outcome]]:
        """A step and the calls that its result asks for, in one Commit before any of them starts."""
        self._refuse_inside(f"turn.exchange({name!r})", "put one after the other")
        key, known = self._past.step(name)
        self._look_back()
        done = known or await self._do(key, name, work, alone=False)
        result = done.given()
        requests = calls(result)
        room = min(self._runtime.settings.result_bytes, room_beside(result))
        return result, await self._make(requests, None if known else done.step, room) if requests else []

    async def enter(self) -> None:
        """Takes back what an earlier owner said in pieces that it did not record: they start over."""
        state = self._writer.state
        spoken = {part.step for part in (*state.draft, *state.reasoning)}
        unfinished = sorted(spoken - self._past.numbers)
        if unfinished:
            await self._writer.commit(*(StepRewound(step=step) for step in unfinished))
            self._room = _room(self._writer, self._runtime.settings.text_bytes)

    async def close(self) -> None:
        """The agent has ended: no tool starts any more, and calls that it left running are torn down as by a cancel.

        Returns when each has ended, a `once` tool with its result recorded.
        """
        self._over = True
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    def _refuse_inside(self, what: str, instead: str) -> None:
        if inside := _INSIDE.get():
            code = "call_in_step" if what == "turn.call" else "step_in_step"
            raise Refused(code, f"{what} inside turn.step({inside.name!r}): {instead}")

    def _refuse_when_over(self) -> None:
        if self._over:
            raise Refused("agent_ended", "the agent has ended and its turn starts no tool; await each call before that")

    # Entered again.

    def _look_back(self) -> None:
        if not self._past.left:
            self._caught_up.set()

    async def _begin(self, what: str) -> None:
        """For what is not recorded: branches that run side by side first ask for all that is. Raises Refused
        (`agent_diverged`) when they do not."""
        self._calls.start_work()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await self._caught_up.wait()
        finally:
            self._calls.end_work()
        self._past.refuse(what)

    # Calls.

    async def _make(self, requests: Sequence[Call], number: int | None, room: int) -> list[Outcome]:
        """`number` is that of the step that asked for them, which they share, `room` what they may take in bytes."""
        self.close_text()
        intents = await self._durable(requests, number, room)
        self._refuse_when_over()
        self._calls.start_work(len(intents))
        tasks = [asyncio.ensure_future(self._settle(intent)) for intent in intents]
        self._settling.update(tasks)
        try:
            return await together(tasks)
        finally:
            self._settling.difference_update(tasks)

    async def _durable(self, requests: Sequence[Call], number: int | None, room: int) -> list[Intent]:
        intents, new = list[Intent](), list[Intent]()
        at = number or self._next
        for request in requests:
            intent, is_new = self._calls.intend(request, at, len(new) + 1, room)
            room -= cost(intent.call)
            intents.append(intent)
            if is_new:
                new.append(intent)
        if new:
            self._next = max(self._next, at + 1)
        self._look_back()
        if new:
            await self._begin(f"a call of {new[0].call.name!r} with these arguments")
            told = judged(self._calls, Principal(self.uid), new)
            await self._writer.commit(*await told, private=self._take_unsaved())
        return intents

    async def _settle(self, intent: Intent) -> Outcome:
        try:
            return await self._calls.settle(intent)
        finally:
            self._calls.end_work()

    # Steps.

    def _number(self) -> int:
        """A number of its own for a step and the calls it asks for: what is said in it can be taken back alone."""
        self._next += 1
        return self._next - 1

    async def _do(self, key: str, name: str, work: Callable[[], Awaitable[JsonValue]], *, alone: bool) -> Recorded:
        """Does what is not recorded, and records it: `alone`, or in the next Commit. A failure is durable before it is
        raised."""
        await self._begin(f"step {name!r}")
        number = self._number()
        self._calls.start_work()
        try:
            done, cause = await self._outcome(name, number, work)
            await self._save()
            self._unsaved.append(self._private(key, done))
            if alone or done.failure:
                await self._save()
        finally:
            self._calls.end_work()
        if done.failure:
            raise done.failure.error() from cause
        return done

    async def _outcome(
        self, name: str, number: int, work: Callable[[], Awaitable[JsonValue]]
    ) -> tuple[Recorded, Exception | None]:
        """What is recorded of it, so that an agent that is entered again is given the same; and why it failed."""
        inside = _INSIDE.set(_Inside(name, number))
        try:
            result = await self._patiently(number, work)
            self.close_text()
            return Recorded(self._first, number, as_recorded(name, result)), None
        except UNRECORDED:
            raise
        except Exception as failed:
            if cancelled():
                raise
            with suppress(Refused):
                self.close_text()
            return Recorded(self._first, number, None, Failure.of(failed)), failed
        finally:
            _INSIDE.reset(inside)

    async def _patiently(self, number: int, work: Callable[[], Awaitable[JsonValue]]) -> JsonValue:
        """Does the work again where the model says that it failed for the moment; what was said is taken back first."""
        pause = RETRY_SECONDS
        for _ in range(self._runtime.settings.model_retries):
            try:
                return await work()
            except ModelFailed as failed:
                unhelpful = (failed.retry_after or 0) > RETRY_AFTER_SECONDS
                if not failed.retryable or unhelpful or cancelled():
                    raise
                log.warning("turn %s: the model failed and is asked again: %s", self.id, failed)
                await self._rewind(number)
                await asyncio.sleep(failed.retry_after or pause * random.uniform(0.5, 1.5))
                pause *= 2
        return await work()

    async def _rewind(self, number: int) -> None:
        self._said, self._thought = Surrogates(), Surrogates()
        state = self._writer.state
        if any(part.step == number for part in (*state.draft, *state.reasoning)):
            await self._writer.commit(StepRewound(step=number))
            self._room = _room(self._writer, self._runtime.settings.text_bytes)

    def _private(self, key: str, done: Recorded) -> Private:
        return Private(self.id, key, text_of(done), self._runtime.clock() + self._runtime.retention_ms)

    async def _save(self) -> None:
        """Two results might be too much for one Commit."""
        if self._unsaved:
            await self._writer.commit(private=self._take_unsaved())

    def _take_unsaved(self) -> tuple[Private, ...]:
        """Results that wait for the next Commit of the agent's; the turn's end has no need of them."""
        taken = tuple(self._unsaved)
        self._unsaved.clear()
        return taken

    # Text.

    def _show(self, kind: type[TextDelta | ReasoningDelta], halves: Surrogates, text: str) -> None:
        if not self._past.left:
            self._extend(kind, halves.feed(text))

    def _extend(self, kind: type[TextDelta | ReasoningDelta], text: str) -> None:
        if not text:
            return
        self._room[kind] -= _measure(text)
        if self._room[kind] < 0:
            what = "text" if kind is TextDelta else "reasoning"
            raise Refused(
                f"{what}_too_large", f"the turn's {what} is over its limit (LEGATO_TEXT_BYTES); end it earlier"
            )
        inside = _INSIDE.get()
        self._writer.show(kind(step=inside.number if inside else self._next, text=text))


def _room(writer: Writer, limit: int) -> dict[type[TextDelta | ReasoningDelta], int]:
    """What may still be said, in bytes of JSON."""
    said = sum(_measure(part.text) for part in writer.state.draft)
    thought = sum(_measure(part.text) for part in writer.state.reasoning)
    return {TextDelta: limit - said, ReasoningDelta: limit - thought}


def _measure(text: str) -> int:
    return len(to_json(text)) - 2


def _holdable(kind: str, tokens: int) -> bool:
    """A field of a Firestore map: a name of 1 to 1,500 bytes that is not reserved, an integer of 64 bits."""
    return 0 < len(kind.encode()) <= 1500 and not re.fullmatch("__.*__", kind, re.DOTALL) and -(2**63) <= tokens < 2**63


class _Ready:
    """Awaitable that waits for the journal, and for the client that started the turn; not awaiting it is no fault."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __await__(self) -> Generator[Any, None, None]:
        if self._writer.feed.lead.holds:
            yield from self._writer.feed.lead.let_go().__await__()
        if not self._writer.ready:
            yield from self._writer.caught_up().__await__()
