"""The agent loop over a turn that records what it is told, and what else may serve as an agent."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from legato import Agent, Tool, Turn, tool
from legato.agents import Call, PastTurn
from legato.agents.adapt import as_agent
from legato.agents.loop import told
from legato.errors import ModelFailed, Refused, ToolFailed
from legato.events import ErrorInfo, Usage
from legato.models import (
    Answer,
    AssistantMessage,
    CallRequested,
    Finished,
    ModelEvent,
    ModelRequest,
    TextChunk,
    ToolMessage,
    UserMessage,
)
from legato.models.scripted import ScriptedModel
from legato.tools import Outcome, ToolContext
from legato.turn import ToolState


class Recorder:
    """A turn that keeps what its agent does. While `open` is not set the journal is behind."""

    id, session, uid, cancelled = "t", "s", "u", False

    def __init__(self, said: JsonValue = "hello") -> None:
        self.input = said
        self.past: list[PastTurn] = []
        self.log: list[tuple[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.said = asyncio.Event()

    def text(self, text: str, /) -> Awaitable[None]:
        self.log.append(("text", text))
        self.said.set()
        return self._ready()

    def reasoning(self, text: str, /) -> Awaitable[None]:
        self.log.append(("reasoning", text))
        return self._ready()

    async def call(self, tool: Tool, /, **arguments: JsonValue) -> JsonValue:
        (outcome,) = await self.calls([Call(tool, tool.name, arguments)])
        if outcome.error:
            raise ToolFailed(outcome.error.code, outcome.error.message)
        return outcome.content

    async def calls(self, requests: Sequence[Call], /) -> list[Outcome]:
        self.log.append(("calls", [(call.name, call.arguments) for call in requests]))
        return list(await asyncio.gather(*map(self._run, requests)))

    async def step(self, name: str, work: Callable[[], Awaitable[JsonValue]], /) -> JsonValue:
        return await work()

    async def exchange(
        self, name: str, work: Callable[[], Awaitable[JsonValue]], calls: Callable[[JsonValue], Sequence[Call]], /
    ) -> tuple[JsonValue, list[Outcome]]:
        """The result goes through JSON, as it does on its way into the journal and back."""
        result: JsonValue = from_json(to_json(await work()))
        requests = calls(result)
        return result, await self.calls(requests) if requests else []

    async def history(self, limit: int, /) -> list[PastTurn]:
        self.log.append(("history", limit))
        return self.past

    async def kept(self, limit: int, /) -> list[JsonValue]:
        return []

    def keep(self, value: JsonValue, /) -> None:
        self.log.append(("keep", value))

    def finish(self, usage: Usage, finish_reason: str) -> None:
        self.log.append(("finish", (usage, finish_reason)))

    def of(self, kind: str) -> list[Any]:
        return [what for which, what in self.log if which == kind]

    async def _ready(self) -> None:
        await self.open.wait()

    async def _run(self, call: Call) -> Outcome:
        if call.tool is None:
            return Outcome.failed("unknown_tool", call.name)
        return await call.tool.run(call.arguments, ToolContext("s/t/1-1"))


@tool(effect="read")
async def double(x: int) -> int:
    return 2 * x


class Told:
    """A model that answers its n-th call with the n-th of `answers` and keeps what it was asked."""

    def __init__(self, *answers: Sequence[ModelEvent]) -> None:
        self._answers = iter(answers)
        self.asked: list[ModelRequest] = []
        self.given = 0
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.append(request)
        try:
            for event in next(self._answers):
                self.given += 1
                yield event
        finally:
            self.closed += 1


ENDLESS: list[ModelEvent] = [TextChunk("a")] * 1000
ASKS: list[ModelEvent] = [
    CallRequested("double", {"x": 4}, "v1"),
    Finished("tool_calls", {"output": 1}, {"signed": "yes"}),
]
ENDS: list[ModelEvent] = [TextChunk("8"), Finished("stop", {"output": 2, "input": 5})]


class TestLoop:
    async def test_says_calls_and_ends_as_the_script_wants(self) -> None:
        turn = Recorder('/say 2\n/parallel double {"x": 1} nobody {}\n/think 1\n/say 1')
        await Agent(model=ScriptedModel(), tools=[double])(turn)
        assert turn.log[1:-1] == [
            ("text", "w1 "),
            ("text", "w2 "),
            ("calls", [("double", {"x": 1}), ("nobody", {})]),
            ("reasoning", "w1 "),
            ("text", "w3 "),
        ]

    async def test_gives_the_model_its_own_message_and_the_outcomes_back(self) -> None:
        model = Told(ASKS, ENDS)
        await Agent(model=model, tools=[double], instructions="be brief")(Recorder("4?"))
        first, second = model.asked
        assert (first.instructions, [spec.name for spec in first.tools]) == ("be brief", ["double"])
        assert first.messages == (UserMessage("4?"),)
        asked = CallRequested("double", {"x": 4}, "v1")
        assert second.messages[1] == AssistantMessage("", (asked,), {"signed": "yes"})
        assert second.messages[2] == ToolMessage(((asked, Outcome(True, 8)),))  # type: ignore[arg-type]

    async def test_tells_the_model_of_the_past_before_the_input(self) -> None:
        turn, model = Recorder("and now?"), Told(ENDS)
        turn.past = [PastTurn("hi", "hello", ()), PastTurn({"n": 1}, "one", ())]
        await Agent(model=model, history=7)(turn)
        assert turn.of("history") == [7]
        assert model.asked[0].messages == (
            UserMessage("hi"),
            AssistantMessage("hello"),
            UserMessage({"n": 1}),
            AssistantMessage("one"),
            UserMessage("and now?"),
        )

    def test_tells_of_tools_apart_from_the_text_and_of_each_steps_together(self) -> None:
        failed = ErrorInfo(code="timeout", message="late")
        tools = (
            ToolState("1-1", 1, "double", {"x": 1}, "read", "ok", 2),
            ToolState("1-2", 1, "pay", {}, "once", "error", None, failed),
            ToolState("2-1", 2, "double", {"x": 3}, "read", "ok", 6),
        )
        one, pay, two = (CallRequested(tool.name, tool.arguments) for tool in tools)
        assert told([PastTurn("go", "done", tools)]) == (
            UserMessage("go"),
            AssistantMessage("", (one, pay)),
            ToolMessage((Answer(one, Outcome(True, 2)), Answer(pay, Outcome(False, None, failed)))),
            AssistantMessage("", (two,)),
            ToolMessage((Answer(two, Outcome(True, 6)),)),
            AssistantMessage("done"),
        )

    async def test_finishes_with_the_usage_of_all_model_calls(self) -> None:
        turn = Recorder()
        await Agent(model=Told(ASKS, ENDS), tools=[double])(turn)
        assert turn.of("finish") == [({"output": 3, "input": 5}, "stop")]

    async def test_gives_the_model_no_half_of_a_pair_back(self) -> None:
        turn = Recorder()
        model = Told([TextChunk("\ud83d"), CallRequested("double", {"x": 1}), Finished()], ENDS)
        await Agent(model=model, tools=[double])(turn)
        assert model.asked[1].messages[1] == AssistantMessage("\ufffd", (CallRequested("double", {"x": 1}),))

    async def test_takes_no_further_chunk_while_the_journal_is_behind(self) -> None:
        turn, model = Recorder(), Told(ENDLESS)
        turn.open.clear()
        running = asyncio.create_task(Agent(model=model)(turn))
        await turn.said.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert model.given == 1
        turn.open.set()
        with pytest.raises(ModelFailed):
            await running
        assert model.given == 1000

    async def test_a_cancelled_turn_closes_the_models_stream(self) -> None:
        turn, model = Recorder(), Told(ENDLESS)
        turn.open.clear()
        running = asyncio.create_task(Agent(model=model)(turn))
        await turn.said.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert model.closed == 1

    async def test_what_follows_the_end_of_an_answer_is_not_read(self) -> None:
        turn, model = Recorder(), Told([*ENDS, TextChunk("late")])
        await Agent(model=model)(turn)
        assert (turn.of("text"), model.closed) == (["8"], 1)

    async def test_a_stream_without_its_end_fails_and_may_be_tried_again(self) -> None:
        with pytest.raises(ModelFailed) as failure:
            await Agent(model=ScriptedModel())(Recorder("/say 1\n/drop"))
        assert (failure.value.code, failure.value.retryable) == ("model_broken_off", True)

    async def test_a_timeout_of_the_models_own_is_not_its_silence(self) -> None:
        class Late(Told):
            async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
                yield TextChunk("a")
                raise TimeoutError("the vendor's")

        with pytest.raises(TimeoutError, match="the vendor's"):
            await Agent(model=Late())(Recorder())

    async def test_time_that_its_client_or_the_journal_takes_is_no_silence_of_the_model(self) -> None:
        turn = Recorder()
        turn.open.clear()
        asyncio.get_running_loop().call_later(0.1, turn.open.set)
        await Agent(model=Told(ENDS), silence=0.05)(turn)
        assert turn.of("text") == ["8"]

    async def test_a_model_that_never_ends_is_refused_and_its_last_calls_are_not_made(self) -> None:
        turn = Recorder()
        with pytest.raises(Refused) as refused:
            await Agent(model=Told(ASKS, ASKS, ASKS), tools=[double], max_steps=2)(turn)
        assert refused.value.code == "too_many_steps"
        assert len(turn.of("calls")) == 1

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"tools": [double, double]}, "two tools are named 'double'"),
            ({"tools": [len]}, "decorate it with @tool"),
            ({"max_steps": 0}, "expected 1 or more"),
            ({"silence": 0}, "expected seconds above 0"),
            ({"history": -1}, "expected 0 or more"),
            ({"name": "two words"}, "name is 'two words'"),
        ],
    )
    def test_refuses_what_can_never_run(self, wrong: dict[str, Any], said: str) -> None:
        with pytest.raises(TypeError, match=said):
            Agent(model=ScriptedModel(), **wrong)


async def by_hand(turn: Turn) -> None:
    await turn.text(str(await turn.call(double, x=2)))


async def words(text: str) -> AsyncIterator[str]:
    yield text.upper()


def sync_words(text: str, sign: str = "!") -> Iterator[str]:
    yield text
    yield sign


def of_the_turn(turn: Any) -> Iterator[str]:
    yield turn.id


def of_a_turn(t: Turn) -> Iterator[str]:
    yield t.session


async def of_nothing() -> AsyncIterator[str]:
    yield "nothing"


async def returning(turn: Turn) -> str:
    return f"{turn.input} back"


class Speaker:
    async def __call__(self, turn: Turn) -> None:
        await turn.text("spoken")

    def pieces(self, said: str) -> Iterator[str]:
        yield f"piece of {said}"


class TestAdapting:
    @pytest.mark.parametrize(
        ("thing", "said"),
        [
            (by_hand, ["4"]),
            (words, ["HELLO"]),
            (sync_words, ["hello", "!"]),
            (partial(sync_words, sign="?"), ["hello", "?"]),
            (of_the_turn, ["t"]),
            (of_a_turn, ["s"]),
            (of_nothing, ["nothing"]),
            (Speaker(), ["spoken"]),
            (returning, ["hello back"]),
            (Speaker().pieces, ["piece of hello"]),
            (Agent(model=ScriptedModel()), ["hello "]),
        ],
    )
    async def test_takes_what_teams_have(self, thing: object, said: list[str]) -> None:
        turn = Recorder()
        await as_agent(thing)(turn)
        assert turn.of("text") == said

    @pytest.mark.parametrize("thing", [None, 5, len, str, Speaker, lambda turn: "x", double])
    def test_refuses_what_says_nothing(self, thing: object) -> None:
        with pytest.raises(TypeError, match="is no agent: expected an Agent"):
            as_agent(thing)

    def test_refuses_a_function_whose_arguments_nothing_would_fill(self) -> None:
        async def none() -> None: ...
        async def two(turn: Turn, other: int) -> None: ...
        def keyword(*, turn: Turn) -> Iterator[str]:
            yield ""

        for function in (none, two, keyword):
            with pytest.raises(TypeError, match="is no agent"):
                as_agent(function)

    async def test_a_generator_of_anything_but_text_is_refused_and_closed(self) -> None:
        closed = threading.Event()

        def numbers() -> Iterator[Any]:
            try:
                yield 5
            finally:
                closed.set()

        with pytest.raises(Refused, match="the agent gave int, expected str"):
            await as_agent(numbers)(Recorder())
        assert await asyncio.to_thread(closed.wait, 5)

    async def test_a_function_that_returns_anything_but_text_is_refused(self) -> None:
        async def numbers(turn: Turn) -> int:
            return 5

        with pytest.raises(Refused, match="the agent gave int, expected str"):
            await as_agent(numbers)(Recorder())

    async def test_an_error_in_a_generator_is_the_turns(self) -> None:
        def failing() -> Iterator[str]:
            yield "a"
            raise ZeroDivisionError

        turn = Recorder()
        with pytest.raises(ZeroDivisionError):
            await as_agent(failing)(turn)
        assert turn.of("text") == ["a"]


class TestSyncGenerators:
    async def test_run_in_one_thread_of_their_own_with_the_callers_contextvars(self) -> None:
        variable = contextvars.ContextVar("variable", default="unset")
        variable.set("mine")

        def where() -> Iterator[str]:
            for _ in range(3):
                yield f"{variable.get()} {threading.get_ident()}"

        turn = Recorder()
        await as_agent(where)(turn)
        assert len(set(turn.of("text"))) == 1
        assert turn.of("text")[0].startswith("mine ")
        assert str(threading.get_ident()) not in turn.of("text")[0]

    async def test_are_pulled_one_item_at_a_time(self) -> None:
        pulled: list[int] = []

        def count() -> Iterator[str]:
            for number in range(3):
                pulled.append(number)
                yield str(number)

        turn = Recorder()
        turn.open.clear()
        running = asyncio.ensure_future(as_agent(count)(turn))
        await turn.said.wait()
        assert pulled == [0]
        turn.open.set()
        await running

    async def test_are_closed_in_their_thread_when_the_turn_is_cancelled(self) -> None:
        closed = threading.Event()
        threads: list[threading.Thread] = []

        def endless() -> Iterator[str]:
            threads.append(threading.current_thread())
            try:
                while True:
                    yield "a"
            finally:
                threads.append(threading.current_thread())
                closed.set()

        turn = Recorder()
        running = asyncio.ensure_future(as_agent(endless)(turn))
        await turn.said.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.to_thread(closed.wait, 5)
        assert threads[0] is threads[1]

    async def test_a_blocked_one_does_not_hold_up_the_cancel(self) -> None:
        release, entered = threading.Event(), threading.Event()

        def stuck() -> Iterator[str]:
            entered.set()
            release.wait()
            yield ""

        running = asyncio.ensure_future(as_agent(stuck)(Recorder()))
        await asyncio.to_thread(entered.wait, 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 30)
        release.set()

    async def test_leave_no_thread_behind(self) -> None:
        await as_agent(sync_words)(Recorder())
        left = [thread for thread in threading.enumerate() if thread.name.startswith("legato-agent")]
        for thread in left:
            thread.join(5)
        assert not any(thread.is_alive() for thread in left)
