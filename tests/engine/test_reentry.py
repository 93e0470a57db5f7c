"""A turn whose owner is lost is entered again by another: nothing that was done is done again, or said twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import JsonValue

from engine.rig import KEY, PATIENCE, Gate, Instance, Puppet, Rig, ends, eventually, nth, types, unbroken
from legato import Agent, tool
from legato.agents import Call, Turn
from legato.errors import ModelFailed
from legato.journal import Commit, Private, TurnRecord
from legato.models import ModelRequest, ToolMessage
from legato.models.scripted import ScriptedModel
from legato.tools import Tool

PLENTY = 3600


class Stop:
    """Holds whoever passes it for the first time; those who come later go by."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._passed = False

    async def __call__(self) -> None:
        if not self._passed:
            self._passed = True
            self.reached.set()
            await self.opened.wait()

    async def stood(self) -> None:
        """Returns when somebody stands there. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            await self.reached.wait()


async def lose(owner: Instance, other: Instance, at: asyncio.Event) -> None:
    """The owner is cut off from its journal, and its lease runs out before `other` takes over."""
    await asyncio.wait_for(at.wait(), PATIENCE)
    live = owner.engine.live.get(KEY)
    if live:
        await live.writer.flush()
    owner.journal.refuse()
    other.clock.advance(PLENTY)
    await other.engine.take_over(KEY)


@dataclass
class Tools:
    """Tools that count how often they were entered, by key."""

    stop: Stop = field(default_factory=Stop)
    entered: list[str] = field(default_factory=list)

    def make(self, effect: Any, **more: Any) -> Tool:
        @tool(effect=effect, name="act", **more)
        async def act(n: int = 0, *, key: str) -> int:
            self.entered.append(key)
            await self.stop()
            return n

        return act


@pytest.fixture
def tools(rig: Rig) -> Iterator[Tools]:
    """What they hold is let go before the instances close."""
    made = Tools()
    yield made
    made.stop.opened.set()


def text_of(record: TurnRecord) -> str:
    assert record.status == "completed", record
    assert record.output is not None
    return record.output


async def test_finished_steps_and_calls_return_at_once_and_nothing_is_said_twice(rig: Rig) -> None:
    stop, done = Stop(), list[str]()

    @tool(effect="once")
    async def pay(n: int) -> int:
        done.append(f"pay {n}")
        return n

    async def plan() -> JsonValue:
        done.append("plan")
        return {"n": 3}

    async def agent(turn: Turn) -> None:
        turn.text("a ")
        planned = await turn.step("plan", plan)
        assert isinstance(planned, dict)
        turn.text("b ")
        paid = await turn.call(pay, **planned)
        turn.text(f"c{paid} ")
        await stop()
        turn.text("d ")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "a b c3 d "
    assert done == ["plan", "pay 3"]
    assert unbroken(await other.stored())


async def test_what_was_said_between_recorded_calls_is_not_said_again(rig: Rig) -> None:
    stop, made = Stop(), list[int]()

    @tool(effect="idempotent")
    async def act(n: int) -> int:
        made.append(n)
        return n

    async def agent(turn: Turn) -> None:
        for n in range(3):
            turn.text(f"{n} ")
            await turn.call(act, n=n)
        await stop()
        turn.text("end")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "0 1 2 end"
    assert made == [0, 1, 2]
    assert types(await other.stored()).count("text.delta") == 4


async def test_a_model_call_that_asks_for_no_tool_costs_no_document_of_its_own(rig: Rig) -> None:
    """The turn's begin and end are the only Commits beside its segments; one with calls adds their own."""
    instance = rig.instance(Agent(model=ScriptedModel()))
    await instance.play("/say 2")
    assert instance.journal.calls.count("commit") == 2
    assert await instance.journal.private(KEY, "t1", instance.clock()) == {}
    await instance.play("/tool nobody {}\n/say 2", "t2")
    assert instance.journal.calls.count("commit") == 2 + 3
    assert set(await instance.journal.private(KEY, "t2", instance.clock())) == {"step.model.1"}


async def test_a_turn_whose_agent_is_served_no_more_fails(rig: Rig) -> None:
    owner, other = rig.instance(Puppet()), rig.instance(Puppet(), agents=["agent"])
    await owner.start(agent="second")
    await owner.engine.close()
    other.clock.advance(PLENTY)
    await other.engine.take_over(KEY)
    record = await other.ended()
    assert record.error
    assert (record.status, record.error["code"]) == ("failed", "agent_unknown")
    assert "'second'" in record.error["message"]


async def test_a_turn_with_the_id_of_a_deleted_one_finds_none_of_its_steps(rig: Rig) -> None:
    """Not even where a late owner's writes come back after the deletion."""
    stop, values = Stop(), iter(["old", "new"])

    async def agent(turn: Turn) -> None:
        if turn.input == "again":
            await stop()
        turn.text(str(await turn.step("one", lambda: _given(next(values)))))

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.play()
    old = await owner.journal.private(KEY, "t1", owner.clock())
    assert old
    await owner.gateway.delete(KEY)
    late = tuple(Private("t1", name, text, owner.clock() + 10**9) for name, text in old.items())
    await owner.journal.commit(KEY, Commit(private=late))
    await owner.start("again")
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "new"


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_call_that_may_run_again_does_so_with_the_same_key(rig: Rig, tools: Tools, effect: str) -> None:
    act = tools.make(effect)

    async def agent(turn: Turn) -> None:
        turn.text(f"{await turn.call(act, n=7)}")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, tools.stop.reached)
    assert text_of(await other.ended()) == "7"
    assert tools.entered == ["s1/t1/1-1"] * 2


async def test_a_step_that_was_not_finished_starts_over_and_takes_back_what_it_said(rig: Rig) -> None:
    stop = Stop()

    async def work(turn: Turn) -> str:
        turn.text("half ")
        await stop()
        turn.text("whole ")
        return "done"

    async def agent(turn: Turn) -> None:
        turn.text("before ")
        await turn.step("first", lambda: _given("1"))
        await turn.step("second", lambda: work(turn))

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "before half whole "
    assert types(await other.stored()).count("step.rewound") == 1


async def _given(value: str) -> str:
    return value


RECONCILED = {"it was done": ({"n": 5}, 1), "it had no effect": (None, 2)}


@pytest.mark.parametrize("told", RECONCILED)
async def test_a_once_call_in_doubt_is_settled_by_its_own_reconcile(rig: Rig, tools: Tools, told: str) -> None:
    result, entered = RECONCILED[told]
    asked = list[str]()

    def reconcile(key: str) -> int | None:
        asked.append(key)
        return result["n"] if result else None

    act = tools.make("once", reconcile=reconcile)

    async def agent(turn: Turn) -> None:
        turn.text(f"{await turn.call(act, n=5)}")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, tools.stop.reached)
    assert text_of(await other.ended()) == "5"
    assert (len(tools.entered), asked) == (entered, ["s1/t1/1-1"])


async def test_a_once_call_is_in_doubt_no_sooner_than_its_owner_must_have_stopped_it(rig: Rig, tools: Tools) -> None:
    """The last lease under which it could have begun, the tool's timeout after that, and what it has to end in."""
    asked = list[int]()

    def reconcile(key: str) -> int:
        asked.append(other.clock())
        return 1

    act = tools.make("once", timeout=60, reconcile=reconcile)

    async def agent(turn: Turn) -> None:
        await turn.call(act)

    owner, other = rig.instance(agent, lease=5), rig.instance(agent, lease=5)
    await owner.start()
    await tools.stop.stood()
    owner.journal.refuse()
    lease = (await other.journal.standing(KEY)).lease
    assert lease
    other.clock.offset += lease.expires_at + 64_900 - other.clock()
    await other.engine.take_over(KEY)
    await eventually(lambda: bool(asked))
    assert asked[0] >= lease.expires_at + 65_000


async def test_a_once_call_in_doubt_that_nobody_can_reconcile_is_put_to_a_person(rig: Rig, tools: Tools) -> None:
    act = tools.make("once")

    async def agent(turn: Turn) -> None:
        turn.text(f"{await turn.call(act, n=5)}")

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, tools.stop.reached)
    await eventually(lambda: not other.engine.live)
    assert types(await other.stored())[-2:] == ["approval.requested", "turn.suspended"]
    await other.gateway.decide(KEY, "t1", "1-1-1", True, None)
    assert text_of(await other.ended()) == "5"
    assert len(tools.entered) == 2


async def test_who_does_not_want_it_again_goes_on_with_the_outcome_unknown(rig: Rig, tools: Tools) -> None:
    caught = list[str]()
    act = tools.make("once")

    async def agent(turn: Turn) -> None:
        (outcome,) = await turn.calls([Call(act, act.name, {})])
        assert outcome.error
        caught.append(outcome.error.code)

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, tools.stop.reached)
    await eventually(lambda: not other.engine.live)
    await other.gateway.decide(KEY, "t1", "1-1-1", False, "leave it")
    assert (await other.ended()).status == "completed"
    assert (len(tools.entered), caught) == (1, ["outcome_unknown"])


async def test_an_agent_that_asks_for_another_call_than_before_fails_its_turn(rig: Rig, tools: Tools) -> None:
    act, asked = tools.make("read"), iter([1, 2])

    async def agent(turn: Turn) -> None:
        await turn.call(act, n=next(asked))

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, tools.stop.reached)
    record = await other.ended()
    assert record.error
    assert record.error["code"] == "agent_diverged"
    assert len(tools.entered) == 1


async def test_an_agent_that_ends_without_what_it_did_before_fails_its_turn(rig: Rig) -> None:
    stop, times = Stop(), iter(range(9))

    async def agent(turn: Turn) -> None:
        if next(times) == 0:
            await turn.step("one", lambda: _given("1"))
            await stop()

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    record = await other.ended()
    assert record.error
    assert record.error["code"] == "agent_diverged"


async def test_a_turn_that_has_cost_three_owners_is_given_to_no_fourth(rig: Rig) -> None:
    stops = [Stop() for _ in range(3)]
    entered = iter(stops)

    async def agent(turn: Turn) -> None:
        await next(entered)()

    instances = [rig.instance(agent) for _ in range(4)]
    await instances[0].start()
    for number, stop in enumerate(stops):
        instances[number + 1].clock.advance(PLENTY * number)
        await lose(instances[number], instances[number + 1], stop.reached)
    record = await instances[3].ended()
    assert record.error
    assert record.error["code"] == "crash_loop"
    attempts = [event.decode().payload for event in await instances[3].stored() if event.type == "turn.resumed"]
    assert [getattr(resumed, "attempt", None) for resumed in attempts] == [1, 2, 3]


class Watched(ScriptedModel):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        async for event in super().stream(request):
            yield event


def _results(request: ModelRequest) -> list[Any]:
    answers = (message.answers for message in request.messages if isinstance(message, ToolMessage))
    return [answer.outcome.content for group in answers for answer in group]


async def test_the_loop_goes_on_and_the_model_sees_each_result_once(rig: Rig, tools: Tools) -> None:
    act, model = tools.make("idempotent"), Watched()
    agent = Agent(model=model, tools=[act])
    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start('/say 2\n/tool act {"n":1}\n/say 2')
    await lose(owner, other, tools.stop.reached)
    assert text_of(await other.ended()) == "w1 w2 w3 w4 "
    assert [_results(request) for request in model.requests] == [[], [1]]


async def test_a_model_that_fails_for_the_moment_is_asked_again_in_the_same_step(rig: Rig) -> None:
    times = iter(range(9))

    class Moody(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            async for event in super().stream(request):
                yield event
                if next(times) == 1:
                    raise ModelFailed("overloaded", "later", retryable=True, retry_after=0.001)

    instance = rig.instance(Agent(model=Moody()))
    records = await instance.play("/say 4")
    assert text_of(await instance.record()) == "w1 w2 w3 w4 "
    assert types(records).count("step.rewound") == 1


async def test_a_model_that_wants_to_be_left_alone_for_long_fails_the_turn_at_once(rig: Rig) -> None:
    class Away(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            raise ModelFailed("overloaded", "tomorrow", retryable=True, retry_after=86400)
            yield

    records = await rig.instance(Agent(model=Away())).play("/say 4")
    assert types(records) == ["turn.started", "turn.failed"]
    assert records[-1].fields()["retryable"] is True


async def test_a_model_that_keeps_failing_fails_the_turn_after_its_retries(rig: Rig) -> None:
    instance = rig.instance(Agent(model=ScriptedModel()), model_retries=1)
    records = await instance.play("/say 2\n/drop")
    words = ["text.delta", "text.delta"]
    assert types(records) == ["turn.started", *words, "step.rewound", *words, "turn.failed"]


async def test_the_results_of_parallel_calls_are_settled_one_by_one(rig: Rig) -> None:
    """One was settled before its owner was lost: it is not made again, the other is."""
    stop, entered = Stop(), list[str]()

    @tool(effect="idempotent")
    async def quick() -> str:
        entered.append("quick")
        return "q"

    @tool(effect="idempotent")
    async def slow() -> str:
        entered.append("slow")
        await stop()
        return "s"

    agent = Agent(model=ScriptedModel(), tools=[quick, slow])
    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start("/parallel quick {} slow {}\n/say 1")
    await owner.shown("tool.result")
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "w1 "
    assert entered == ["quick", "slow", "slow"]
    results = [record for record in await other.stored() if record.type == "tool.result"]
    assert len(results) == 2


async def test_a_turn_is_complete_once_however_often_it_changed_hands(rig: Rig) -> None:
    stops = [Stop(), Stop()]

    async def agent(turn: Turn) -> None:
        for number, stop in enumerate(stops):
            turn.text(f"{number} ")
            await turn.step("wait", lambda: _given("x"))
            await stop()

    instances = [rig.instance(agent) for _ in range(3)]
    await instances[0].start()
    await lose(instances[0], instances[1], stops[0].reached)
    instances[2].clock.advance(PLENTY)
    await lose(instances[1], instances[2], stops[1].reached)
    assert text_of(await instances[2].ended()) == "0 1 "
    assert len(ends(await instances[2].stored())) == 1


async def test_a_models_answer_and_all_its_calls_are_one_commit_before_any_tool_starts(rig: Rig, tools: Tools) -> None:
    agent = Agent(model=ScriptedModel(), tools=[tools.make("read")])
    instance = rig.instance(agent)
    gate = Gate()
    instance.journal.rule = nth(gate, 2, "commit")
    await instance.start('/parallel act {"n":1} act {"n":2}')
    await gate.stood()
    assert types(instance.journal.segments[-1].records()) == ["tool.call", "tool.call"]
    assert await instance.journal.private(KEY, "t1", instance.clock()) == {}
    assert tools.entered == []
    gate.open()
    await instance.shown("tool.call", 2)
    assert list(await instance.journal.private(KEY, "t1", instance.clock())) == ["step.model.1"]
    tools.stop.opened.set()
    await instance.ended()


async def test_a_call_that_is_in_doubt_again_is_a_new_question(rig: Rig, tools: Tools) -> None:
    """Whoever wanted it made again has not answered for what became of it then."""
    stops = [tools.stop, Stop()]
    entered = iter(stops)

    @tool(effect="once")
    async def act() -> None:
        await next(entered)()

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, act.name, {})])

    owner, second, third = (rig.instance(agent) for _ in range(3))
    await owner.start()
    await lose(owner, second, stops[0].reached)
    await eventually(lambda: not second.engine.live)
    await second.gateway.decide(KEY, "t1", "1-1-1", True, None)
    third.clock.advance(PLENTY)
    await lose(second, third, stops[1].reached)
    await eventually(lambda: not third.engine.live)
    asked = [record.decode().payload for record in await third.stored() if record.type == "approval.requested"]
    assert [getattr(question, "request", None) for question in asked] == ["1-1-1", "1-1-2"]
    stops[1].opened.set()
