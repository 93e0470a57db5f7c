"""The scripted model: what each directive does, and that a model call is a function of its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import JsonValue

from legato.errors import ModelFailed
from legato.models import (
    AssistantMessage,
    CallRequested,
    Finished,
    Message,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolMessage,
    UserMessage,
)
from legato.models.scripted import ScriptedModel


def request(script: JsonValue, calls_before: int = 0) -> ModelRequest:
    """The model call that follows `calls_before` others of a turn, itself the second of its session."""
    earlier: tuple[Message, ...] = (UserMessage("/say 3"), AssistantMessage("w1 w2 w3 "))
    since: tuple[Message, ...] = (AssistantMessage(""), ToolMessage(())) * calls_before
    return ModelRequest("", (*earlier, UserMessage(script), *since))


async def ask(script: JsonValue, calls_before: int = 0) -> list[ModelEvent]:
    return [event async for event in ScriptedModel().stream(request(script, calls_before))]


def text(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextChunk))


async def test_says_numbered_words_and_finishes() -> None:
    assert await ask("/say 2") == [
        TextChunk("w1 "),
        TextChunk("w2 "),
        Finished("stop", {"input_tokens": 2, "output_tokens": 2}),
    ]


@pytest.mark.parametrize("script", ["one  two\nthree", "/sleep 0\none two\n\nthree"])
async def test_answers_plain_lines_word_by_word(script: str) -> None:
    assert text(await ask(script)) == "one two three "


async def test_answers_every_character_that_is_no_space_as_it_came() -> None:
    assert text(await ask("a\u2028b \x00 \u00a0c\r")) == "a\u2028b \x00 \u00a0c\r "


@pytest.mark.parametrize(("content", "said"), [({"ask": 1}, '{"ask": 1} '), (None, "null "), ("", "")])
async def test_answers_an_input_that_is_no_text_as_json(content: JsonValue, said: str) -> None:
    assert text(await ask(content)) == said


async def test_goes_on_after_the_line_that_asked_for_tools() -> None:
    script = '/say 2\n/tool a {"x": "}{"}\n/say 2\n/parallel b c {"y": [1]} d 5\n/say 1'
    calls = [await ask(script, before) for before in range(4)]
    assert [text(call) for call in calls] == ["w1 w2 ", "w3 w4 ", "w5 ", ""]
    asked = [[event for event in call if isinstance(event, CallRequested)] for call in calls]
    assert asked[0] == [CallRequested("a", {"x": "}{"})]
    assert asked[1] == [CallRequested("b", {}), CallRequested("c", {"y": [1]}), CallRequested("d", 5)]
    assert [call[-1].finish_reason for call in calls if isinstance(call[-1], Finished)] == ["tool_calls"] * 2 + [
        "stop"
    ] * 2


async def test_the_same_request_gets_the_same_answer() -> None:
    script = "/say 3\n/tool a\n/say 40"
    assert await ask(script, 1) == await ask(script, 1)


async def test_thinks_in_words_of_their_own_count() -> None:
    events = await ask("/think 2\n/say 1\n/think 1")
    assert [event.text for event in events if isinstance(event, ReasoningChunk)] == ["w1 ", "w2 ", "w3 "]
    assert text(events) == "w1 "


async def test_fails_with_the_message_it_was_given() -> None:
    with pytest.raises(ModelFailed, match=r"^the quota is used up$"):
        await ask("/say 1\n/fail the quota is used up")


async def test_drops_its_stream_without_an_end() -> None:
    assert await ask("/say 1\n/drop\n/say 1") == [TextChunk("w1 ")]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("/say", "line 1 of the script: '/say': expected /say WORDS"),
        ("hello\n/say many", "line 2 of the script: WORDS is 'many'"),
        ("/say 1 2 3", "expected /say WORDS"),
        ("/say 5 0", "PER_SECOND is '0', expected a number above 0"),
        ("/say 5 nan", "PER_SECOND is 'nan'"),
        ("/say -1", "WORDS is '-1'"),
        ("/sleep -1", "SECONDS is '-1', expected a number from 0"),
        ("/tool", "expected /tool NAME"),
        ("/tool a {", "expected JSON at '{'"),
        ("/tool a {} b {}", "expected nothing more at 'b {}'"),
        ("/tool {}", "expected the name of a tool at '{}'"),
        ("/drop it", "expected /drop"),
        ("/dance", "'/dance': expected one of /say WORDS"),
    ],
)
async def test_says_what_is_wrong_with_a_directive(script: str, said: str) -> None:
    with pytest.raises(ModelFailed) as failure:
        await ask(script)
    assert said in str(failure.value)
    assert failure.value.code == "bad_directive"


class FastLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def test_words_come_on_a_schedule_that_a_slow_reader_does_not_push_back() -> None:
    async def read() -> list[float]:
        clock, times = asyncio.get_running_loop().time, []
        async for event in ScriptedModel().stream(request("/say 6 10\n/sleep 2\n/say 1")):
            times.append(round(clock(), 3))
            if event == TextChunk("w2 "):
                await asyncio.sleep(0.25)
        return times

    with asyncio.Runner(loop_factory=FastLoop) as runner:
        assert runner.run(read()) == [0.0, 0.1, 0.35, 0.35, 0.4, 0.5, 2.5, 2.5]


async def test_unpaced_words_leave_the_loop_to_others() -> None:
    turns: list[Any] = []

    async def other() -> None:
        while len(turns) < 10:
            turns.append(None)
            await asyncio.sleep(0)

    others = asyncio.create_task(other())
    await ask("/say 200")
    assert len(turns) == 10
    await others
