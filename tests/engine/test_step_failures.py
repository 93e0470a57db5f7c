"""A step that fails has failed for good: an agent that is entered again is given the same failure, without the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import JsonValue

from engine.rig import KEY, PATIENCE, Gate, Rig, nth
from engine.test_reentry import Stop, lose, text_of
from legato import Agent, StepFailed, Turn, tool
from legato.errors import LegatoError, ModelFailed, Refused, ToolFailed
from legato.models import ModelRequest
from legato.models.scripted import ScriptedModel

Raised = list[tuple[type[Exception], dict[str, Any], str]]


class Failing:
    """Work that fails with `errors`, one after the other; an agent that catches that, and then is held once."""

    def __init__(self, *errors: Exception) -> None:
        self.stop, self.caught = Stop(), Raised()
        self.done = 0
        self._errors = errors

    async def work(self) -> None:
        self.done += 1
        raise self._errors[min(self.done, len(self._errors)) - 1]

    async def agent(self, turn: Turn) -> None:
        try:
            await self.made(turn)
        except LegatoError as failed:
            self.caught.append((type(failed), vars(failed), str(failed)))
        await turn.text("on ")
        await self.stop()
        await turn.text("end")

    async def made(self, turn: Turn) -> None:
        await turn.step("work", self.work)


class FailingExchange(Failing):
    async def made(self, turn: Turn) -> None:
        await turn.exchange("work", self.work, lambda result: [])


ERRORS = [
    ModelFailed("overloaded", "later", retry_after=2.5),
    ToolFailed("no_funds", "none left"),
    Refused("no", "not this"),
    ValueError("half \ud83d"),
    KeyError("gone"),
]


@pytest.mark.parametrize("made", [Failing, FailingExchange])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_failure_that_an_agent_has_caught_comes_again_without_the_work(
    rig: Rig, made: Callable[..., Failing], error: Exception
) -> None:
    failing = made(error)
    owner, other = rig.instance(failing.agent), rig.instance(failing.agent)
    await owner.start()
    await lose(owner, other, failing.stop.reached)
    assert text_of(await other.ended()) == "on end"
    assert failing.done == 1
    first, again = failing.caught
    assert first == again
    assert first[0] in (type(error), StepFailed)


async def test_an_error_that_is_none_of_legatos_is_raised_as_a_failed_step(rig: Rig) -> None:
    cause, raised = ValueError("no"), list[StepFailed]()

    async def work() -> None:
        raise cause

    async def agent(turn: Turn) -> None:
        try:
            await turn.step("work", work)
        except StepFailed as failed:
            raised.append(failed)

    await rig.instance(agent).play()
    (failed,) = raised
    assert (failed.kind, failed.message, str(failed), failed.__cause__) == ("ValueError", "no", "ValueError: no", cause)


async def test_a_failure_is_durable_before_it_is_raised(rig: Rig) -> None:
    failing = Failing(ValueError("no"))
    instance = rig.instance(failing.agent)
    gate = Gate()
    instance.journal.rule = nth(gate, 2, "commit")
    await instance.start()
    await gate.stood()
    assert (failing.done, failing.caught) == (1, [])
    gate.open()
    await failing.stop.stood()
    assert list(await instance.journal.private(KEY, "t1", instance.clock())) == ["step.work.1"]
    failing.stop.opened.set()
    await instance.ended()


async def test_what_a_step_said_before_it_failed_stays_and_is_not_said_again(rig: Rig) -> None:
    stop = Stop()

    async def agent(turn: Turn) -> None:
        async def speak() -> None:
            await turn.text("half \ud83d")
            raise ValueError("lost its thread")

        try:
            await turn.step("speak", speak)
        except StepFailed:
            await turn.text("instead ")
        await stop()
        await turn.text("end")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "half \ufffdinstead end"
    spoken = [record for record in await other.stored() if record.type == "text.delta"]
    assert sum("half" in record.data for record in spoken) == 1


async def test_of_a_model_that_keeps_failing_the_last_failure_is_recorded(rig: Rig) -> None:
    errors = [ModelFailed("overloaded", f"{n}", retryable=True, retry_after=0.001) for n in (1, 2)]
    failing = FailingExchange(*errors)
    owner, other = rig.instance(failing.agent, model_retries=1), rig.instance(failing.agent, model_retries=1)
    await owner.start()
    await lose(owner, other, failing.stop.reached)
    await other.ended()
    assert failing.done == 2
    assert [(kind, said) for kind, _, said in failing.caught] == [(ModelFailed, "2")] * 2


async def test_an_agent_that_falls_back_on_another_model_goes_on_with_that(rig: Rig) -> None:
    asked, stop = list[str](), Stop()

    class Broken(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            asked.append("broken")
            raise ModelFailed("down", "down")
            yield

    class Sound(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            asked.append("sound")
            async for event in super().stream(request):
                yield event

    @tool(effect="idempotent")
    async def look() -> None:
        await stop()

    first, second = Agent(model=Broken(), tools=[look]), Agent(model=Sound(), tools=[look])

    async def agent(turn: Turn) -> None:
        try:
            await first(turn)
        except ModelFailed:
            await second(turn)

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start("/say 1\n/tool look {}\n/say 1")
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "w1 w2 "
    assert asked == ["broken", "sound", "sound"]


async def test_work_that_fails_because_it_is_cancelled_is_done_again(rig: Rig) -> None:
    """Elsewhere: its instance drains in the midst of it, and what it makes of that is no failure of its own."""
    entered, done = asyncio.Event(), list[str]()

    async def work() -> JsonValue:
        done.append("begun")
        if len(done) > 1:
            return "done"
        try:
            entered.set()
            return await _for_ever()
        except asyncio.CancelledError:
            raise ModelFailed("cut", "the connection was cut", retryable=True, retry_after=0.001) from None

    async def agent(turn: Turn) -> None:
        await turn.text(str(await turn.step("work", work)))

    owner, other = rig.instance(agent, drain=0), rig.instance(agent)
    await owner.start()
    await asyncio.wait_for(entered.wait(), PATIENCE)
    await owner.gateway.drain()
    assert len(done) == 1
    assert await owner.journal.private(KEY, "t1", owner.clock()) == {}
    await other.engine.take_over(KEY)
    assert text_of(await other.ended()) == "done"


def _for_ever() -> Awaitable[JsonValue]:
    return asyncio.get_running_loop().create_future()
