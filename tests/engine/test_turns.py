"""What an agent can do with its turn, and what becomes of agents and tools that do what they should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import JsonValue

from engine.rig import Rig, types, unbroken
from legato import Agent, StepFailed, tool
from legato.agents import Call, Turn
from legato.errors import Refused, ToolFailed
from legato.models.scripted import ScriptedModel


@tool(effect="read")
async def look(name: str) -> str:
    return f"<{name}>"


async def test_a_hand_written_agent_says_calls_and_takes_steps(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        await turn.text(f"{turn.input}: ")
        await turn.text(str(await turn.call(look, name="a")))
        await turn.text(str(await turn.step("count", count)))

    async def count() -> JsonValue:
        return " three"

    records = await rig.instance(agent).play("hi")
    assert unbroken(records)
    assert types(records) == [
        "turn.started", "text.delta", "tool.call", "tool.result", "text.delta", "text.delta", "turn.completed",
    ]  # fmt: skip
    assert '"text":"hi: <a> three"' in records[-1].data


def sync_words(text: str) -> Iterator[str]:
    yield from text.split()


async def async_words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


@pytest.mark.parametrize("agent", [sync_words, async_words])
async def test_a_plain_generator_of_text_is_an_agent(rig: Rig, agent: Any) -> None:
    instance = rig.instance(agent)
    await instance.play("one two")
    assert (await instance.record()).output == "onetwo"


async def failing(turn: Turn) -> None:
    await turn.text("so far")
    raise ValueError("the password is swordfish")


async def test_an_agent_that_raises_fails_its_turn_and_tells_no_internals(rig: Rig) -> None:
    instance = rig.instance(failing)
    records = await instance.play()
    record = await instance.record()
    assert (record.status, record.partial) == ("failed", "so far")
    assert '"code":"agent_error","message":"the agent raised ValueError"' in records[-1].data
    assert not any("swordfish" in each.data for each in records)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), BaseException()])
async def test_an_agent_cannot_end_the_process(rig: Rig, raised: BaseException) -> None:
    """Its turn fails, and the next one runs."""

    async def agent(turn: Turn) -> None:
        if turn.id == "t1":
            raise raised

    instance = rig.instance(agent)
    await instance.play()
    assert (await instance.record()).status == "failed"
    assert types(await instance.play(turn="t2"))[-1] == "turn.completed"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_cannot_end_the_process(rig: Rig, is_async: bool) -> None:
    """Its call ends in an error, and the turn goes on."""

    @tool(effect="read", name="leave")
    async def leave() -> None:
        raise SystemExit(3)

    @tool(effect="read", name="leave")
    def leave_sync() -> None:
        raise SystemExit(3)

    async def agent(turn: Turn) -> None:
        with pytest.raises(ToolFailed):
            await turn.call(leave if is_async else leave_sync)
        await turn.text("on")

    instance = rig.instance(agent)
    await instance.play()
    assert (await instance.record()).output == "on"


@pytest.mark.parametrize("kind", ["text", "reasoning"])
async def test_what_a_turn_says_is_bounded(rig: Rig, kind: str) -> None:
    """What goes over the limit is refused with a code of its own, and the turn keeps the text it had."""

    async def agent(turn: Turn) -> None:
        await turn.text("12345")
        await getattr(turn, kind)("x" * (6 if kind == "text" else 11))

    instance = rig.instance(agent, text_bytes=10)
    await instance.play()
    record = await instance.record()
    assert record.error
    assert (record.error["code"], record.partial) == (f"{kind}_too_large", "12345")


async def test_a_call_inside_a_step_is_refused(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        await turn.step("s", lambda: turn.call(look, name="a"))

    instance = rig.instance(agent)
    records = await instance.play()
    record = await instance.record()
    assert record.error
    assert record.error["code"] == "call_in_step"
    assert types(records) == ["turn.started", "turn.failed"]


async def test_a_call_beside_a_step_is_not_inside_it(rig: Rig) -> None:
    """They run side by side, each under a number of its own, and what follows has the next."""
    called = asyncio.Event()

    async def agent(turn: Turn) -> None:
        async def call() -> None:
            await turn.call(look, name="a")
            called.set()

        await asyncio.gather(turn.step("s", called.wait), call())
        await turn.text("after")

    records = await rig.instance(agent).play()
    assert types(records) == ["turn.started", "tool.call", "tool.result", "text.delta", "turn.completed"]
    assert records[3].fields()["step"] == 3


async def test_a_step_that_raises_can_be_caught_and_the_turn_goes_on(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        with pytest.raises(StepFailed):
            await turn.step("s", lambda: fails(turn))
        await turn.text(str(await turn.call(look, name="b")))

    async def fails(turn: Turn) -> None:
        await turn.text("a")
        raise LookupError

    instance = rig.instance(agent)
    await instance.play()
    assert (await instance.record()).output == "a<b>"


@pytest.mark.parametrize(
    ("chunks", "output"),
    [
        (["a\ud83d", "\ude00b"], "a\U0001f600b"),
        (["\ud83d", "x"], "�x"),
        (["x\ud83d"], "x�"),
        (["\ude00"], "�"),
    ],
)
async def test_halves_of_surrogate_pairs_are_joined_across_chunks(rig: Rig, chunks: list[str], output: str) -> None:
    """A half that finds no other becomes U+FFFD; nothing that is not UTF-8 reaches the journal."""

    async def agent(turn: Turn) -> None:
        for chunk in chunks:
            await turn.text(chunk)

    instance = rig.instance(agent)
    await instance.play()
    assert (await instance.record()).output == output


async def test_half_a_pair_before_a_call_is_shown_before_it(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        await turn.text("a\ud83d")
        await turn.call(look, name="n")
        await turn.text("\ude00")

    instance = rig.instance(agent)
    records = await instance.play()
    assert types(records)[1:4] == ["text.delta", "text.delta", "tool.call"]
    assert (await instance.record()).output == "a��"


async def test_a_name_that_no_tool_has_is_answered_and_the_turn_goes_on(rig: Rig) -> None:
    instance = rig.instance(Agent(model=ScriptedModel(), tools=[look]))
    records = await instance.play('/parallel nobody {} look {"name": "a"}\n/say 1')
    assert [("unknown_tool" in record.data) for record in records if record.type == "tool.result"] == [True, False]
    assert (await instance.record()).output == "w1 "


@tool(effect="read")
async def wrong() -> int:
    return "three"  # type: ignore[return-value]


@tool(effect="read")
async def huge() -> str:
    return "x" * 2000


@pytest.mark.parametrize(("bad", "code"), [(wrong, "bad_result"), (huge, "result_too_large")])
async def test_a_result_that_cannot_be_taken_is_an_error_of_its_call(rig: Rig, bad: Any, code: str) -> None:
    """Neither journal nor agent see it, and the turn goes on."""

    async def agent(turn: Turn) -> None:
        with pytest.raises(ToolFailed) as failed:
            await turn.call(bad)
        await turn.text(failed.value.code)

    instance = rig.instance(agent, result_bytes=1000)
    records = await instance.play()
    assert (await instance.record()).output == code
    assert not any("xxx" in record.data or "three" in record.data for record in records)


@pytest.mark.parametrize("name", ["x" * 401, "\u00e9" * 201, "half \ud83d"])
async def test_a_step_whose_name_no_journal_can_hold_is_refused(rig: Rig, name: str) -> None:
    """Before its work begins; its instance keeps the turn."""
    done: list[str] = []

    async def work() -> None:
        done.append(name)

    async def agent(turn: Turn) -> None:
        await turn.step("x" * 400, work)
        await turn.step(name, work)

    instance = rig.instance(agent)
    await instance.play()
    error = (await instance.record()).error
    assert error
    assert (error["code"], len(done)) == ("bad_name", 1)


async def test_a_tools_own_error_that_nobody_catches_is_the_turns(rig: Rig) -> None:
    @tool(effect="read")
    async def poor() -> None:
        raise ToolFailed("no_funds", "there is no money")

    async def agent(turn: Turn) -> None:
        await turn.call(poor)

    instance = rig.instance(agent)
    await instance.play()
    assert (await instance.record()).error == {"code": "no_funds", "message": "there is no money"}


async def test_parallel_calls_are_durable_together_before_any_starts(rig: Rig) -> None:
    """One segment holds all of them, and each tool finds it in the journal when it is entered."""
    found: list[list[str]] = []

    @tool(effect="read")
    async def peek() -> None:
        found.append(types(await instance.stored()))

    async def agent(turn: Turn) -> None:
        await turn.text("before ")
        await turn.calls([Call(peek, "peek", {})] * 3)

    instance = rig.instance(agent, flush=60)
    await instance.play()
    durable = ["turn.started", "text.delta", "tool.call", "tool.call", "tool.call"]
    assert all(kinds[:5] == durable for kinds in found)
    assert len(found) == 3
    assert types(instance.journal.segments[1].records()) == durable[1:]


async def test_calls_are_named_by_step_and_number_and_know_their_key(rig: Rig) -> None:
    """Calls made together count up within a step; each step has a number of its own and begins at one."""
    keys: list[str] = []

    @tool(effect="once")
    async def note(*, key: str) -> None:
        keys.append(key)

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(note, "note", {})] * 2)
        await asyncio.gather(turn.call(note), turn.call(note))
        await turn.call(note)

    await rig.instance(agent).play()
    assert sorted(keys) == [f"s1/t1/{call}" for call in ("1-1", "1-2", "2-1", "3-1", "4-1")]


async def test_what_an_agent_leaves_running_adds_nothing_after_the_end(rig: Rig) -> None:
    """A task of the agent's that outlives it is refused."""
    late: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    async def speak(turn: Turn) -> None:
        await ended.wait()
        await turn.text("late")

    async def agent(turn: Turn) -> None:
        late.append(asyncio.create_task(speak(turn)))

    instance = rig.instance(agent)
    records = await instance.play()
    ended.set()
    with pytest.raises(Refused):
        await late[0]
    assert await instance.stored() == records


async def test_text_that_is_not_awaited_counts_too(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        turn.text("one ")
        turn.reasoning("aside")
        turn.text("two")

    instance = rig.instance(agent)
    records = await instance.play()
    assert types(records) == ["turn.started", "text.delta", "reasoning.delta", "text.delta", "turn.completed"]
    assert (await instance.record()).output == "one two"
