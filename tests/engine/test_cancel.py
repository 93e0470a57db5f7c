"""Stopping a turn: what is torn down, what is let finish, and that one terminal event comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from engine.payment import Payment
from engine.rig import KEY, PATIENCE, Instance, Puppet, Rig, ends, eventually, types
from legato import Agent, tool
from legato.agents import AgentFunction, Call, Turn
from legato.errors import JournalRejected
from legato.journal import Commit, Control, Decision, SessionKey
from legato.models import ModelEvent, ModelRequest, TextChunk
from legato.tools import Tool, ToolContext


async def cancel(instance: Instance, reason: str = "enough") -> None:
    assert await instance.gateway.cancel(KEY, "t1", reason, "ann") is False


def calling(*tools: Tool) -> AgentFunction:
    """An agent that calls these tools side by side."""

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(each, each.name, {}) for each in tools])

    return agent


class Endless:
    """A model that speaks until it is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            while True:
                yield TextChunk("word ")
                await asyncio.sleep(0.01)
        finally:
            self.closed.set()


async def test_a_cancel_closes_the_models_stream(rig: Rig) -> None:
    """The turn ends as interrupted, its text kept as partial."""
    model = Endless()
    instance = rig.instance(Agent(model=model))
    await instance.start()
    await instance.shown("text.delta")
    await cancel(instance)
    record = await instance.ended()
    assert model.closed.is_set()
    assert record.status == "interrupted"
    assert record.partial
    assert record.partial.startswith("word ")


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_tool_that_may_run_again_is_torn_down(rig: Rig, effect: str) -> None:
    entered, torn = asyncio.Event(), asyncio.Event()

    @tool(effect=effect)  # type: ignore[call-overload, untyped-decorator]
    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            torn.set()

    instance = rig.instance(calling(work))
    await instance.start()
    await asyncio.wait_for(entered.wait(), PATIENCE)
    await cancel(instance)
    record = await instance.ended()
    assert torn.is_set()
    assert types(await instance.stored()) == ["turn.started", "tool.call", "turn.interrupted"]
    assert [state.status for state in record.tools] == ["unsettled"]


async def test_a_running_once_tool_finishes_and_its_result_comes_before_the_end(rig: Rig) -> None:
    """Beside it a tool that only reads is torn down."""
    payment = Payment()

    @tool(effect="read")
    async def look() -> None:
        await asyncio.Event().wait()

    instance = rig.instance(calling(payment.tool, look))
    await instance.start()
    await payment.entered()
    await cancel(instance)
    client = await instance.follow(start=True)
    await client.pinged()
    assert "turn.interrupted" not in client.kinds
    payment.going.set()
    record = await instance.ended()
    assert types(await instance.stored())[1:] == ["tool.call", "tool.call", "tool.result", "turn.interrupted"]
    assert [(state.name, state.status) for state in record.tools] == [("pay", "ok"), ("look", "unsettled")]


async def test_a_sync_tool_sees_that_its_turn_is_cancelled(rig: Rig) -> None:
    entered, saw = threading.Event(), threading.Event()

    @tool(effect="once")
    def pay(*, turn: ToolContext) -> str:
        entered.set()
        while not turn.cancelled:
            saw.wait(0.001)
        saw.set()
        return "stopped"

    instance = rig.instance(calling(pay))
    await instance.start()
    await eventually(entered.is_set)
    await cancel(instance)
    record = await instance.ended()
    assert saw.is_set()
    assert [state.content for state in record.tools] == ["stopped"]


async def test_an_agent_that_swallows_its_cancellation_ends_within_the_grace(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says nothing more: what it tries to add is refused."""
    monkeypatch.setattr("legato.engine.live.GRACE_SECONDS", 0.05)
    going, refused = asyncio.Event(), asyncio.Event()

    async def agent(turn: Turn) -> None:
        await turn.text("kept")
        while not going.is_set():
            try:
                await going.wait()
            except asyncio.CancelledError:
                continue
        try:
            await turn.text("late")
        finally:
            refused.set()

    instance = rig.instance(agent)
    await instance.start()
    await instance.shown("text.delta")
    await cancel(instance)
    record = await instance.ended()
    going.set()
    await asyncio.wait_for(refused.wait(), PATIENCE)
    assert (record.status, record.partial) == ("interrupted", "kept")
    assert types(await instance.stored())[-1] == "turn.interrupted"


async def test_a_cancel_before_the_start_is_honoured_at_the_start(rig: Rig) -> None:
    """The agent is never entered."""
    entered = asyncio.Event()

    async def agent(turn: Turn) -> None:
        entered.set()

    instance = rig.instance(agent)
    await cancel(instance)
    records = await instance.play()
    assert types(records) == ["turn.started", "turn.interrupted"]
    assert not entered.is_set()


async def test_a_cancel_counts_for_its_own_turn_alone(rig: Rig) -> None:
    """The next turn of the session is not touched by what was asked of the one before."""
    instance = rig.instance(saying)
    await cancel(instance)
    await instance.play()
    records = await instance.play(turn="t2")
    assert types(ends(records)) == ["turn.interrupted", "turn.completed"]


async def test_a_cancel_waits_for_its_turn_while_others_run(rig: Rig) -> None:
    """Only what was asked of the turn before, and what is older than the TTL, is forgotten at a start."""
    instance = rig.instance(saying)
    for turn in ("t1", "t2"):
        await instance.gateway.cancel(KEY, turn, "early", "ann")
    for turn in ("t1", "t0", "t2"):
        await instance.play(turn=turn)
    assert [(await instance.record(turn)).status for turn in ("t0", "t2")] == ["completed", "interrupted"]
    control = await instance.journal.control(KEY)
    assert control
    assert set(control.cancels) == {"t2"}


async def test_a_cancel_leaves_the_decisions_as_they_are(rig: Rig) -> None:
    instance = rig.instance(saying)
    decided = Control({}, 1 << 50, decisions={"t1": {"r1": Decision(True, "ann", None, 1)}})
    await instance.journal.commit(KEY, Commit(control=decided))
    await cancel(instance)
    control = await instance.journal.control(KEY)
    assert control
    assert (set(control.cancels), control.decisions) == ({"t1"}, decided.decisions)


async def saying(turn: Turn) -> None:
    for _ in range(5):
        await turn.text("word ")
        await asyncio.sleep(0)


async def test_a_cancel_through_the_other_instance_reaches_the_owner(rig: Rig) -> None:
    model = Endless()
    owner, other = rig.instance(Agent(model=model)), rig.instance(Puppet())
    await owner.start()
    await cancel(other)
    assert (await owner.ended()).status == "interrupted"
    assert model.closed.is_set()


async def test_a_look_that_is_refused_does_not_keep_the_owner_from_looking_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    look, refusals = owner.journal.control, iter([JournalRejected("not allowed, for a moment")])

    async def control(key: SessionKey) -> Control | None:
        for refused in refusals:
            raise refused
        return await look(key)

    monkeypatch.setattr(owner.journal, "control", control)
    await owner.start()
    await cancel(other)
    assert (await owner.ended()).status == "interrupted"


async def test_only_the_first_cancel_counts(rig: Rig) -> None:
    """Whoever asks second, here or elsewhere, changes neither reason nor name."""
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    await owner.start()
    await cancel(other, "first")
    await cancel(owner, "second")
    await owner.ended()
    assert '"reason":"first"' in (await owner.stored())[-1].data


async def test_a_cancel_of_an_ended_turn_says_so(rig: Rig) -> None:
    instance = rig.instance(saying)
    before = await instance.play()
    assert await instance.gateway.cancel(KEY, "t1", "late", "ann") is True
    assert await instance.stored() == before


async def test_a_cancel_raced_with_completion_leaves_one_terminal_event(rig: Rig) -> None:
    """200 turns, each of which ends a little later in the course of its cancel: nothing follows the end."""
    leaving: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def agent(turn: Turn) -> None:
        await leaving[turn.session].wait()

    instance, loop = rig.instance(agent), asyncio.get_running_loop()
    statuses = set()
    for index in range(200):
        key = SessionKey("ann", f"s{index}")
        await instance.start(key=key)
        asking = asyncio.create_task(instance.gateway.cancel(key, "t1", "enough", "ann"))
        if index % 20 == 19:
            await asking
        loop.call_later(index % 20 * 0.0005, leaving[key.session].set)
        statuses.add((await instance.ended(key=key)).status)
        await asking
        records = await instance.stored(key)
        assert types(records) in (["turn.started", "turn.completed"], ["turn.started", "turn.interrupted"])
    assert statuses == {"interrupted", "completed"}


async def test_a_cancel_while_a_call_is_not_durable_yet_starts_no_tool(rig: Rig) -> None:
    entered = asyncio.Event()

    @tool(effect="once")
    async def pay() -> None:
        entered.set()

    instance = rig.instance(calling(pay))
    gate = instance.journal.hold("append")
    await instance.start()
    await gate.stood()
    await cancel(instance)
    instance.journal.heal()
    gate.open()
    record = await instance.ended()
    assert record.status == "interrupted"
    assert not entered.is_set()


async def test_cancels_of_turns_that_never_begin_are_bounded(rig: Rig) -> None:
    """The newest 64 are kept; a real one still gets in and through."""
    owner = rig.instance(Puppet())
    for index in range(70):
        await owner.gateway.cancel(KEY, f"never-{index}", "early", "ann")
    await owner.start()
    await cancel(owner)
    assert (await owner.ended()).status == "interrupted"
    control = await owner.journal.control(KEY)
    assert control
    assert len(control.cancels) <= 64
    assert "never-69" in control.cancels


async def test_a_once_tool_outlives_cancel_and_loss_of_the_lease_by_nothing(rig: Rig) -> None:
    """Cancelled, then fenced while its tool still runs: the turn lets go once the tool is done, and writes nothing."""
    entered, going, paid = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def pay() -> None:
        entered.set()
        await going.wait()
        paid.set()

    owner, other = rig.instance(calling(pay), lease=0.3), rig.instance(Puppet())
    await owner.start()
    await asyncio.wait_for(entered.wait(), PATIENCE)
    live = owner.live()
    await cancel(owner)
    other.clock.advance(3600)
    await other.engine.take_over(KEY)
    await other.ended()
    before = await other.stored()
    await asyncio.wait_for(live.holding.lost.wait(), PATIENCE)
    await eventually(lambda: live.writer.feed.closed == "lease")
    for _ in range(50):  # the second cancellation passes through turn and agent down to the call
        await asyncio.sleep(0)
    assert owner.engine.live[KEY] is live
    going.set()
    await asyncio.wait_for(paid.wait(), PATIENCE)
    await eventually(lambda: not owner.engine.live)
    assert await other.stored() == before
