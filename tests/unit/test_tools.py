"""Tools: what can be declared, what a call is given, and every way in which it can end."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, JsonValue

from legato import Tool, ToolContext, ToolFailed, tool
from legato.errors import LeaseLost
from legato.threads import Threads
from legato.tools import Outcome

SURROGATE = "\ud83d"
WRONG: Any = "wrong"


@pytest.fixture
async def context() -> ToolContext:
    return ToolContext("s/t/1-1")


def code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


@tool
async def add(amount: int, times: Annotated[int, Field(ge=1, description="how often")] = 1, *, key: str) -> str:
    """Adds it up."""
    return f"{key}: {amount * times}"


@tool
def anything(value: str) -> object:
    return VALUES[value]


class Point(BaseModel):
    x: int
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Pair:
    a: int
    b: list[str]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


VALUES: dict[str, Any] = {
    "nan": math.nan,
    "inf": [math.inf],
    "bytes": b"x",
    "set": {1},
    "object": object(),
    "number keys": {1: 2},
    "surrogate": {"a": [SURROGATE]},
    "surrogate key": {SURROGATE: 1},
    "too deep": nested(500),
    "too deep for its event": nested(195),
    "circular": circular(),
}


def unannotated(x): ...  # type: ignore[no-untyped-def]
def positional(*args: int) -> None: ...
def named(**kwargs: int) -> None: ...
def wrong_key(*, key: int) -> None: ...
def wrong_turn(*, turn: str) -> None: ...
def no_schema(x: threading.Event) -> None: ...
def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def field_default(x: int = Field(3)) -> None: ...
def generator() -> Any:
    yield 1


def doubtful() -> threading.Event:
    return threading.Event()


UNCALLABLE: list[Callable[..., Any]] = [
    unannotated, positional, named, wrong_key, wrong_turn, no_schema, unknown, field_default, generator, doubtful, int,
]  # fmt: skip


class TestDeclaring:
    def test_describes_the_models_parameters_alone(self) -> None:
        assert (add.name, add.description, add.effect) == ("add", "Adds it up.", "once")
        assert add.parameters["required"] == ["amount"]
        assert add.parameters["additionalProperties"] is False
        properties = add.parameters["properties"]
        assert isinstance(properties, dict)
        assert list(properties) == ["amount", "times"]

    async def test_calling_a_tool_calls_its_function(self) -> None:
        assert await add(2, 3, key="k") == "k: 6"

    async def test_a_positional_parameter_named_key_is_the_models(self, context: ToolContext) -> None:
        @tool
        def find(key: str, schema: str = "s", /) -> list[str]:
            return [key, schema]

        assert list(find.parameters["properties"]) == ["key", "schema"]  # type: ignore[arg-type]
        assert await find.run({"key": "mine"}, context) == Outcome(True, ["mine", "s"])

    def test_a_default_that_json_cannot_say_is_left_out_of_the_schema(self) -> None:
        @tool
        def find(missing: Any = object()) -> None: ...  # noqa: B008

        assert find.parameters["properties"] == {"missing": {"title": "Missing"}}

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"effect": "twice"}, "expected one of read, idempotent, once"),
            ({"timeout": 0}, "expected seconds above 0"),
            ({"timeout": math.nan}, "expected seconds above 0"),
            ({"name": "no spaces"}, "a name has"),
            ({"name": ""}, "a name has"),
            ({"effect": "read", "reconcile": print}, "only a tool with effect='once'"),
        ],
    )
    def test_refuses_options_that_mean_nothing(self, options: dict[str, Any], said: str) -> None:
        def work() -> None: ...

        with pytest.raises(TypeError, match=said):
            tool(**options)(work)

    @pytest.mark.parametrize("function", UNCALLABLE)
    def test_refuses_a_function_that_no_model_could_call(self, function: Callable[..., Any]) -> None:
        with pytest.raises(TypeError, match=r"^tool"):
            tool(function)


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({}, "amount: Field required"),
            ({"amount": "many"}, "amount: Input should be a valid integer"),
            ({"amount": 1, "times": 0}, "times: Input should be greater than or equal to 1"),
            ({"amount": 1, "key": "forged"}, "key: Extra inputs are not permitted"),
            ({"amount": 1, "p0": 1}, "p0: Extra inputs are not permitted"),
            ({"amount": math.nan}, "not JSON compliant"),
            ({SURROGATE: 1}, "surrogates not allowed"),
            ([1], "should be an object"),
            (None, "should be an object"),
        ],
    )
    async def test_wrong_ones_are_told_with_path_and_reason(
        self, arguments: JsonValue, said: str, context: ToolContext
    ) -> None:
        outcome = await add.run(arguments, context)
        assert code(outcome) == "bad_arguments"
        assert said in message(outcome)

    async def test_wrong_ones_never_enter_the_function(self, context: ToolContext) -> None:
        entered: list[int] = []

        @tool
        def note(x: int) -> None:
            entered.append(x)

        assert code(await note.run({"x": "no"}, context)) == "bad_arguments"
        assert entered == []

    async def test_right_ones_come_in_their_types_beside_the_key(self, context: ToolContext) -> None:
        @tool
        async def show(point: Point, *, key: str, turn: ToolContext) -> list[str]:
            return [type(point).__name__, point.at.isoformat(), key, turn.key]

        outcome = await show.run({"point": {"x": 1, "at": "2026-05-06T00:00:00Z"}}, context)
        assert outcome.content == ["Point", "2026-05-06T00:00:00+00:00", "s/t/1-1", "s/t/1-1"]


class TestResults:
    @pytest.mark.parametrize("value", VALUES)
    async def test_what_json_cannot_say_is_a_bad_result(self, value: str, context: ToolContext) -> None:
        outcome = await anything.run({"value": value}, context)
        assert code(outcome) == "bad_result"
        assert message(outcome).isascii()

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (str, 5),
            (int, "5"),
            (Point, {"x": "1"}),
            (Point, Point.model_construct(x=WRONG)),
            (list[int], [1, "2"]),
            (dict[str, Any], {"a": b"x"}),
            (dict[str, Any], {"a": {1}}),
            (Any, datetime(2026, 1, 1, tzinfo=UTC)),
            (bytes, b"x"),
            (None, 0),
        ],
    )
    async def test_what_was_not_annotated_is_a_bad_result(
        self, annotation: Any, value: Any, context: ToolContext
    ) -> None:
        assert code(await returning(annotation, value).run({}, context)) == "bad_result"

    @pytest.mark.parametrize(
        ("annotation", "value", "content"),
        [
            (Point, Point(x=1), {"x": 1, "at": "2026-01-02T00:00:00Z"}),
            (Pair, Pair(1, ["é"]), {"a": 1, "b": ["é"]}),
            (tuple[int, str], (1, "a"), [1, "a"]),
            (None, None, None),
            (object, {"a": [1, None, True, 1.5, "😀"]}, {"a": [1, None, True, 1.5, "😀"]}),
        ],
    )
    async def test_what_was_annotated_becomes_plain_json(
        self, annotation: Any, value: Any, content: JsonValue, context: ToolContext
    ) -> None:
        assert await returning(annotation, value).run({}, context) == Outcome(True, content)

    async def test_is_a_copy_that_the_tool_cannot_change_any_more(self, context: ToolContext) -> None:
        kept: list[JsonValue] = [1]
        outcome = await returning(list[int], kept).run({}, context)
        kept.append(2)
        assert outcome.content == [1]

    async def test_may_have_just_the_bytes_that_fit(self, context: ToolContext) -> None:
        long = returning(str, "é" * 4)
        assert (await long.run({}, context, result_bytes=10)).ok
        outcome = await long.run({}, context, result_bytes=9)
        assert outcome == Outcome.failed("result_too_large", "the result is 10 bytes of JSON, at most 9 fit")

    async def test_is_measured_as_an_event_has_it(self, context: ToolContext) -> None:
        """U+2028 is escaped there."""
        separator = returning(str, "\u2028")
        assert (await separator.run({}, context, result_bytes=8)).content == "\u2028"
        assert code(await separator.run({}, context, result_bytes=7)) == "result_too_large"

    async def test_a_coroutine_nobody_awaits_is_a_bad_result(self, context: ToolContext) -> None:
        @tool
        def forgot() -> Any:
            return asyncio.sleep(0)

        assert code(await forgot.run({}, context)) == "bad_result"


def returning(annotation: Any, value: Any) -> Tool:
    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    return tool(give)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Unutterable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class TestFailures:
    @pytest.mark.parametrize("in_thread", [True, False])
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ValueError("no such thing"), ("tool_failed", "ValueError: no such thing")),
            (ValueError(f"half {SURROGATE}"), ("tool_failed", "ValueError: half \ufffd")),
            (ToolFailed("no_funds", "the account is empty"), ("no_funds", "the account is empty")),
            (SystemExit(3), ("tool_failed", "SystemExit: 3")),
            (KeyboardInterrupt(), ("tool_failed", "KeyboardInterrupt")),
            (StopIteration(), ("tool_failed", None)),
            (Unspeakable(), ("tool_failed", "Unspeakable")),
            (Unutterable(), ("tool_failed", "Unutterable")),
            (asyncio.CancelledError(), ("tool_failed", None)),
        ],
    )
    async def test_become_outcomes_and_harm_nobody_else(
        self, error: BaseException, expected: tuple[str, str | None], in_thread: bool, context: ToolContext
    ) -> None:
        outcome = await raising(error, in_thread).run({}, context)
        assert code(outcome) == expected[0]
        assert expected[1] in (None, message(outcome))

    async def test_a_long_message_is_cut(self, context: ToolContext) -> None:
        assert len(message(await raising(ValueError("x" * 10_000), False).run({}, context))) == 2000


def raising(error: BaseException, in_thread: bool) -> Tool:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    return tool(fail if in_thread else fail_async)


class TestTime:
    async def test_an_async_tool_is_cancelled_at_its_timeout(self, context: ToolContext) -> None:
        ended = asyncio.Event()

        @tool(timeout=0.01)
        async def slow() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        assert await slow.run({}, context) == Outcome.failed("timeout", "no result within the tool's timeout of 0.01 s")
        assert ended.is_set()
        assert context.cancelled

    async def test_a_tool_that_swallows_its_cancellation_holds_nobody_up(self, context: ToolContext) -> None:
        release = asyncio.Event()
        outcome = await stubborn(release).run({}, context, grace=0.01)
        assert code(outcome) == "timeout"
        release.set()

    async def test_a_result_that_comes_within_the_grace_counts(self, context: ToolContext) -> None:
        @tool(timeout=0.01)
        async def done_after_all() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "done"
            return "never"

        assert await done_after_all.run({}, context) == Outcome(True, "done")

    async def test_cancelling_the_call_cancels_the_tool(self, context: ToolContext) -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        @tool
        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        call = asyncio.create_task(wait.run({}, context))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended.is_set()

    async def test_cancelling_a_stubborn_tool_takes_no_longer_than_the_grace(self, context: ToolContext) -> None:
        release = asyncio.Event()
        call = asyncio.create_task(stubborn(release, timeout=60).run({}, context, grace=0.01))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 30)
        release.set()

    async def test_a_sync_tool_is_given_up_and_told(self, context: ToolContext) -> None:
        told = threading.Event()

        @tool(timeout=0.05)
        def slow(*, turn: ToolContext) -> None:
            while not turn.cancelled:
                time.sleep(0.001)
            told.set()

        outcome = await slow.run({}, context)
        assert (code(outcome), "may still be at work" in message(outcome)) == ("timeout", True)
        assert await asyncio.to_thread(told.wait, 5)

    async def test_a_sync_tool_sees_that_its_turn_is_cancelled(self) -> None:
        cancelled = threading.Event()
        context = ToolContext("k", cancelled=cancelled.is_set)

        @tool
        def look(*, turn: ToolContext) -> list[bool]:
            before = turn.cancelled
            cancelled.set()
            return [before, turn.cancelled]

        assert (await look.run({}, context)).content == [False, True]


def stubborn(release: asyncio.Event, timeout: float = 0.01) -> Tool:
    async def hold_on() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    return tool(timeout=timeout)(hold_on)


class TestThreads:
    async def test_a_full_pool_settles_the_call_and_never_starts_it_later(self, context: ToolContext) -> None:
        threads, release, entered = Threads(1, "test"), threading.Event(), threading.Event()
        holding = asyncio.wrap_future(threads.submit(release.wait))
        quick = tool(timeout=0.02)(entered.set)
        assert code(await quick.run({}, context, threads=threads)) == "busy"
        release.set()
        await holding
        await asyncio.wrap_future(threads.submit(int))
        assert not entered.is_set()
        threads.close()

    async def test_there_are_never_more_threads_than_the_bound(self) -> None:
        threads, names = Threads(3, "bound"), set[str]()

        def work() -> None:
            names.add(threading.current_thread().name)
            time.sleep(0.001)

        await asyncio.gather(*(asyncio.wrap_future(threads.submit(work)) for _ in range(50)))
        assert names == {"bound-1", "bound-2", "bound-3"}
        threads.close()

    async def test_a_sync_tool_keeps_the_callers_contextvars(self, context: ToolContext) -> None:
        variable = contextvars.ContextVar("variable", default="unset")
        variable.set("mine")

        @tool
        def read() -> str:
            return variable.get() + threading.current_thread().name[:11]

        assert (await read.run({}, context)).content == "minelegato-tool"


class TestProgress:
    @pytest.mark.parametrize("in_thread", [True, False])
    async def test_is_told_in_the_loop_and_in_order(self, in_thread: bool) -> None:
        told: list[tuple[str | None, float | None, str]] = []
        context = ToolContext("k", lambda text, part: told.append((text, part, threading.current_thread().name)))
        await reporting(in_thread).run({}, context)
        here = threading.current_thread().name
        assert told == [("a", None, here), (None, 1.0, here), ("\ufffd", 0.0, here), (None, None, here)]

    async def test_that_the_turn_takes_no_more_harms_neither_tool_nor_loop(self) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))

        def lost(message: str | None, fraction: float | None) -> None:
            raise LeaseLost

        assert (await reporting(True).run({}, ToolContext("k", lost))).ok
        assert complaints == []

    async def test_does_nothing_once_the_call_has_ended(self) -> None:
        told: list[float | None] = []
        context = ToolContext("k", lambda _, fraction: told.append(fraction))
        await reporting(False).run({}, context)
        told.clear()
        context.progress("late", 1)
        await asyncio.sleep(0)
        assert told == []


def reporting(in_thread: bool) -> Tool:
    def report(*, turn: ToolContext) -> None:
        turn.progress("a")
        turn.progress(fraction=7)
        turn.progress(SURROGATE, -1)
        turn.progress(fraction=math.nan)

    async def report_async(*, turn: ToolContext) -> None:
        report(turn=turn)
        await asyncio.sleep(0)

    function: Callable[..., Any] = report if in_thread else report_async
    return tool(function)


async def test_a_tool_that_may_not_run_any_more_is_not_entered(context: ToolContext) -> None:
    """The look at it is the last thing before the function, in a task as in a thread."""
    entered: list[str] = []

    async def gone() -> None:
        raise LeaseLost("over")

    @tool
    async def in_task() -> None:
        entered.append("task")

    @tool
    def in_thread() -> None:
        entered.append("thread")

    for each in (in_task, in_thread):
        with pytest.raises(LeaseLost):
            await each.run({}, context, ready=gone)
    assert entered == []


def test_a_tool_declares_the_credentials_that_it_asks_for() -> None:
    @tool(credentials=["mail", "drive"])
    def send() -> None: ...

    assert send.credentials == ("mail", "drive")


@pytest.mark.parametrize("names", ["mail", ("a b",), ("",), (5,), None, ("credential.mail",)])
def test_a_name_that_no_credential_can_have_is_refused(names: Any) -> None:
    with pytest.raises(TypeError, match=r"credentials is .*, expected a tuple of names"):
        tool(credentials=names, name="send")(lambda: None)


# What is asked beside a call.


@pytest.mark.parametrize("escape", [SystemExit, asyncio.CancelledError])
async def test_what_escapes_from_approval_or_reconcile_ends_neither_the_turn_nor_the_process(
    escape: type[BaseException],
) -> None:
    """A person is asked, and nothing is known."""

    def fails(_: object) -> None:
        raise escape

    @tool(effect="once", approval=fails, reconcile=fails)
    async def wire(amount: int) -> None: ...

    assert wire.asks({"amount": 1}) == "wire?"
    assert await asyncio.create_task(wire.reconciled("s/t/1-1", 1000)) is None


def test_what_approval_does_to_the_arguments_is_not_done_to_the_call() -> None:
    arguments: JsonValue = {"amount": 1}

    @tool(approval=lambda given: f"wire {given.pop('amount')}?")
    async def wire(amount: int) -> None: ...

    assert wire.asks(arguments) == "wire 1?"
    assert arguments == {"amount": 1}
