"""What every model must hold. A model's own test file supplies `model`, which follows the scripts of `models.scripted`,
and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter

from legato.errors import ModelFailed
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
from legato.tools import Outcome

PATIENCE = 10.0
LOOKUP = ToolSpec(
    "lookup",
    "Looks a key up.",
    {
        "type": "object",
        "properties": {"key": {"$ref": "#/$defs/Key"}},
        "required": ["key"],
        "additionalProperties": False,
        "$defs": {"Key": {"type": "string"}},
    },
)
TWO = '/say 2\n/parallel lookup {"key": "a"} lookup {"key": "b"}\n/say 2'
_VENDOR: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def request(*messages: Message, instructions: str = "Follow the script.") -> ModelRequest:
    return ModelRequest(instructions, messages, (LOOKUP,))


async def ask(model: Model, *messages: Message) -> list[ModelEvent]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in model.stream(request(*messages))]


def text(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextChunk))


def calls(events: list[ModelEvent]) -> tuple[CallRequested, ...]:
    return tuple(event for event in events if isinstance(event, CallRequested))


def finished(events: list[ModelEvent]) -> Finished:
    """The end, which is at the end and nowhere else."""
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    assert isinstance(events[-1], Finished)
    return events[-1]


def recorded(events: list[ModelEvent]) -> AssistantMessage:
    """The answer as it comes back from a journal."""
    vendor = _VENDOR.validate_json(_VENDOR.dump_json(finished(events).vendor))
    return AssistantMessage(text(events), calls(events), vendor)


def results(events: list[ModelEvent], *outcomes: Outcome) -> ToolMessage:
    return ToolMessage(tuple(map(Answer, calls(events), outcomes)))


def closing(stream: AsyncIterator[ModelEvent]) -> Any:
    return aclosing(stream)


class ModelContract:
    async def test_says_its_text_in_pieces_as_it_comes(self, model: Model) -> None:
        events = await ask(model, UserMessage("/say 12"))
        assert text(events) == "".join(f"w{n} " for n in range(1, 13))
        assert len(events) > 2
        assert finished(events).finish_reason == "stop"

    async def test_tells_thoughts_from_text(self, model: Model) -> None:
        events = await ask(model, UserMessage("/think 3\n/say 2"))
        assert [type(event) for event in events[:-1]] == [ReasoningChunk] * 3 + [TextChunk] * 2
        assert text(events) == "w1 w2 "

    async def test_counts_tokens_by_kind(self, model: Model) -> None:
        usage = finished(await ask(model, UserMessage("/say 5"))).usage or {}
        assert {"input_tokens", "output_tokens"} <= usage.keys()
        assert all(count > 0 for count in usage.values())

    async def test_asks_for_tools_in_their_order_and_ends_its_answer_there(self, model: Model) -> None:
        events = await ask(model, UserMessage(TWO))
        assert [(call.name, call.arguments) for call in calls(events)] == [
            ("lookup", {"key": "a"}),
            ("lookup", {"key": "b"}),
        ]
        assert finished(events).finish_reason == "tool_calls"

    async def test_goes_on_with_the_results_even_where_they_are_errors(self, model: Model) -> None:
        asked = UserMessage(TWO)
        first = await ask(model, asked)
        outcomes = results(first, Outcome(True, ["found", {"n": 1}]), Outcome.failed("denied", "no"))
        assert text(await ask(model, asked, recorded(first), outcomes)) == "w3 w4 "

    async def test_takes_back_what_it_said_as_a_journal_kept_it(self, model: Model) -> None:
        """Through several answers of one turn, thoughts and all."""
        messages: tuple[Message, ...] = (UserMessage('/think 1\n/say 1\n/tool lookup {"key": "a"}\n' * 3 + "/say 1"),)
        said = ""
        for _ in range(3):
            events = await ask(model, *messages)
            messages = (*messages, recorded(events), results(events, Outcome(True, "x")))
            said += text(events)
        assert said + text(await ask(model, *messages)) == "w1 w2 w3 w4 "

    async def test_is_told_of_past_turns_without_a_message_of_its_own(self, model: Model) -> None:
        """Another model may have answered them, with calls and without words."""
        call = CallRequested("lookup", {"key": "a"})
        past: list[Message] = [UserMessage("before"), AssistantMessage("", (call,))]
        past += [ToolMessage((Answer(call, Outcome(True, "x")),)), AssistantMessage("done")]
        past += [UserMessage("more"), AssistantMessage("")]
        assert text(await ask(model, *past, UserMessage("/say 2"))) == "w1 w2 "

    @pytest.mark.parametrize("content", [{"ask": [1, None]}, ["a"], 5, None])
    async def test_takes_any_input_that_is_json(self, model: Model, content: JsonValue) -> None:
        assert text(await ask(model, UserMessage(content)))

    async def test_a_stream_that_breaks_off_has_no_end(self, model: Model) -> None:
        events: list[ModelEvent] = []
        with suppress(ModelFailed):
            async for event in model.stream(request(UserMessage("/say 2\n/drop"))):
                events.append(event)  # noqa: PERF401 - what came before the failure counts
        assert text(events) == "w1 w2 "
        assert not any(isinstance(event, Finished) for event in events)

    async def test_an_error_in_mid_answer_is_a_failure_with_its_message(self, model: Model) -> None:
        with pytest.raises(ModelFailed, match="out of order"):
            await ask(model, UserMessage("/say 2\n/fail out of order"))

    async def test_is_closed_in_mid_answer_at_once(self, model: Model) -> None:
        before = asyncio.all_tasks()
        asked = request(UserMessage("/say 2\n/sleep 60"))
        async with asyncio.timeout(PATIENCE), closing(model.stream(asked)) as stream:
            assert await anext(stream)
        await self.settled(before)

    async def test_is_cancelled_while_it_waits_at_once(self, model: Model) -> None:
        """It neither swallows the cancellation nor leaves anything at work."""
        before, first = asyncio.all_tasks(), asyncio.Event()

        async def reads() -> None:
            async with closing(model.stream(request(UserMessage("/say 1\n/sleep 60\n/say 1")))) as stream:
                async for _ in stream:
                    first.set()

        reading = asyncio.create_task(reads())
        async with asyncio.timeout(PATIENCE):
            await first.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await self.settled(before)

    async def test_many_answers_at_once_stay_apart(self, model: Model) -> None:
        answers = await asyncio.gather(*(ask(model, UserMessage(f"/say {n}")) for n in range(1, 30)))
        assert [len(text(events).split()) for events in answers] == list(range(1, 30))

    async def settled(self, before: set[asyncio.Task[Any]]) -> None:
        """Nothing that a call has begun is left."""
        async with asyncio.timeout(PATIENCE):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)
