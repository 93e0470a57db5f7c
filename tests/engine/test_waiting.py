"""A turn that waits for a person: answered, replaced, cancelled, deleted, through whichever instance is asked."""

from __future__ import annotations

import pytest

from engine.rig import KEY, Instance, Rig, ends, eventually, types, unbroken
from legato import tool
from legato.agents import Turn
from legato.errors import AlreadyDecided, Draining, NotFound

ASKED = ["turn.started", "text.delta", "tool.call", "approval.requested", "turn.suspended"]


class Paying:
    """Pays once a person has approved; `paid` are the keys with which it did."""

    def __init__(self) -> None:
        self.paid: list[str] = []

        @tool(effect="once", approval="Pay?")
        async def pay(*, key: str) -> str:
            self.paid.append(key)
            return "paid"

        self.pay = pay

    async def __call__(self, turn: Turn) -> None:
        if turn.input == "short":
            return
        turn.text("before ")
        turn.text(f"{await turn.call(self.pay)} ")
        turn.text("after")


async def waiting(rig: Rig, agent: Paying) -> Instance:
    """The instance that ran a turn until it had to wait; it holds nothing any more."""
    owner = rig.instance(agent)
    await owner.start()
    await eventually(lambda: not owner.engine.live)
    assert types(await owner.stored()) == ASKED
    assert (await owner.record()).status == "waiting"
    return owner


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_an_approved_call_is_made_and_the_turn_goes_on(rig: Rig, where: str) -> None:
    agent = Paying()
    owner = await waiting(rig, agent)
    instance = owner if where == "here" else rig.instance(agent)
    await instance.gateway.decide(KEY, "t1", "1-1-1", True, "fine")
    assert (await instance.ended()).output == "before paid after"
    assert agent.paid == ["s1/t1/1-1"]
    records = await instance.stored()
    assert types(records)[5:8] == ["turn.resumed", "approval.resolved", "tool.result"]
    assert unbroken(records)


@pytest.mark.parametrize("turn", ["t1", None])
async def test_a_stream_ends_where_its_turn_begins_to_wait(rig: Rig, turn: str | None) -> None:
    """It says why, so that nobody holds a connection while a person thinks."""
    owner = await waiting(rig, Paying())
    client = await owner.follow(turn=turn, start=True)
    closing = (await client.end())[-1]
    assert client.kinds == [*ASKED, "stream.closing"]
    assert '"reason":"suspended"' in closing.data


async def test_nobody_owns_a_turn_that_waits(rig: Rig) -> None:
    """Whoever looks at it, however late within its time, leaves it alone."""
    owner = await waiting(rig, Paying())
    owner.clock.advance(3600)
    standing = await owner.journal.standing(KEY)
    assert not standing.owned(owner.clock())
    assert not owner.engine.needs_owner(standing)


async def test_a_question_that_nobody_answers_in_time_is_denied(rig: Rig) -> None:
    agent = Paying()
    owner = await waiting(rig, agent)
    owner.clock.advance(86401)
    with pytest.raises(AlreadyDecided):
        await owner.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await owner.engine.take_over(KEY)
    record = await owner.ended()
    assert record.error
    assert (record.status, record.error["code"], agent.paid) == ("failed", "denied", [])


async def test_a_second_decision_that_says_otherwise_is_refused(rig: Rig) -> None:
    agent = Paying()
    owner = await waiting(rig, agent)
    await owner.gateway.decide(KEY, "t1", "1-1-1", False, None)
    assert (await owner.gateway.decide(KEY, "t1", "1-1-1", False, None)).again
    with pytest.raises(AlreadyDecided):
        await owner.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await owner.ended()
    assert agent.paid == []


async def test_a_question_that_was_never_asked_is_not_there(rig: Rig) -> None:
    owner = await waiting(rig, Paying())
    with pytest.raises(NotFound):
        await owner.gateway.decide(KEY, "t1", "1-1-2", True, None)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_new_turn_can_replace_one_that_waits(rig: Rig, where: str) -> None:
    """The one that waited ends as interrupted, its call never made."""
    agent = Paying()
    owner = await waiting(rig, agent)
    instance = owner if where == "here" else rig.instance(agent)
    await instance.start("short", "t2", if_active="interrupt")
    await instance.ended("t2")
    records = await instance.stored()
    assert types(records) == [*ASKED, "turn.resumed", "turn.interrupted", "turn.started", "turn.completed"]
    assert agent.paid == []


async def test_a_turn_that_waits_is_cancelled_through_an_instance_that_never_ran_it(rig: Rig) -> None:
    agent = Paying()
    await waiting(rig, agent)
    other = rig.instance(agent)
    assert await other.gateway.cancel(KEY, "t1", "enough", "ann") is False
    record = await other.ended()
    assert (record.status, record.partial, agent.paid) == ("interrupted", "before ", [])
    assert types(ends(await other.stored())) == ["turn.interrupted"]


async def test_an_instance_that_drains_refuses_what_it_could_not_go_on_with(rig: Rig) -> None:
    """Taken, an answer or a cancel would be left lying until somebody looks at the turn."""
    agent = Paying()
    owner = await waiting(rig, agent)
    await owner.gateway.drain()
    with pytest.raises(Draining):
        await owner.gateway.decide(KEY, "t1", "1-1-1", True, None)
    with pytest.raises(Draining):
        await owner.gateway.cancel(KEY, "t1", "enough", "ann")
    other = rig.instance(agent)
    await other.gateway.decide(KEY, "t1", "1-1-1", False, None)
    assert (await other.ended()).status == "failed"


async def test_deleting_a_session_that_waits_leaves_no_question_and_no_answer(rig: Rig) -> None:
    agent = Paying()
    owner = await waiting(rig, agent)
    await rig.instance(agent).gateway.delete(KEY)
    assert await owner.journal.private(KEY, "t1", owner.clock()) == {}
    with pytest.raises(NotFound):
        await owner.gateway.decide(KEY, "t1", "1-1-1", True, None)
    assert types(await owner.play("short"))[-2:] == ["turn.started", "turn.completed"]
    assert agent.paid == []
