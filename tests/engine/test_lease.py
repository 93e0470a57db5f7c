"""The right to append: kept, lost, taken over. Clocks are moved, nobody waits for a lease to run out."""

from __future__ import annotations

import asyncio
import sqlite3
from itertools import count
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Fault, Gate, Instance, Puppet, Rig, eventually, nth, types, unbroken
from legato import tool
from legato.agents import Turn
from legato.engine.run import LOOKS
from legato.errors import JournalRejected
from legato.journal import Commit, SessionKey, TurnRecord

LATER = 3600


async def begun(rig: Rig, **settings: Any) -> tuple[Instance, Turn]:
    puppet = Puppet()
    instance = rig.instance(puppet, "a", **settings)
    await instance.start("input")
    return instance, await puppet.turn()


async def abandoned(rig: Rig, *said: str) -> Instance:
    """A turn whose owner is gone, `said` in the journal; gives another instance, whose clock is past the lease."""
    owner, turn = await begun(rig)
    for text in said:
        turn.text(text)
    await owner.live().writer.flush()
    await owner.engine.close()
    other = rig.instance(saying_again, "b")
    other.clock.advance(LATER)
    return other


async def saying_again(turn: Turn) -> None:
    """What an owner that has lost everything but its input says."""
    turn.text("again")


WHOLE = ["turn.started", "text.delta", "turn.resumed", "step.rewound", "text.delta", "turn.completed"]


async def test_an_owner_renews_its_lease_three_times_in_its_span(rig: Rig) -> None:
    """Without anything to append the lease moves on."""
    owner, _ = await begun(rig, lease=0.3)
    first = owner.live().holding.lease.expires_at
    await eventually(lambda: owner.journal.calls.count("renew") >= 3)
    stored = (await owner.journal.standing(KEY)).lease
    assert stored
    assert stored.expires_at > first
    assert "append" not in owner.journal.calls


async def test_an_owner_past_its_expiry_renews_before_it_appends(rig: Rig) -> None:
    """Else it could create a position that is free only because TTL has emptied the journal."""
    owner, turn = await begun(rig)
    owner.clock.advance(LATER)
    turn.text("late")
    await owner.shown("text.delta")
    calls = [call for call in owner.journal.calls if call in ("renew", "append")]
    assert calls == ["renew", "append"]


async def test_an_owner_whose_lease_ran_out_too_long_ago_has_lost_it_to_nobody(rig: Rig) -> None:
    """It stood for so long that its events have expired: its turn is ended like any other that was left."""
    owner, turn = await begun(rig)
    owner.clock.advance(owner.runtime.settings.ttl)
    turn.text("late")
    await eventually(lambda: not owner.engine.live)
    assert not {"renew", "append"} & set(owner.journal.calls)
    await owner.engine.take_over(KEY)
    record = await owner.ended()
    assert record.error
    assert record.error["code"] == "expired"


async def test_a_start_answered_after_its_lease_had_gone_does_not_displace_the_turn_that_runs_now(rig: Rig) -> None:
    async def waits(turn: Turn) -> None:
        await asyncio.Event().wait()

    owner, other, gate = rig.instance(waits, "a"), rig.instance(waits, "b"), Gate(after=True)
    owner.journal.rule = nth(gate, 1, "commit")
    late = asyncio.create_task(owner.start(turn="t1"))
    await gate.stood()
    other.clock.advance(LATER)
    await other.gateway.cancel(KEY, "t1", "asked to", KEY.uid)
    await other.ended()
    await owner.start(turn="t2")
    gate.open()
    await late
    assert owner.live().id == "t2"


async def test_an_owner_past_its_lease_shows_nothing_and_stops_its_model(rig: Rig) -> None:
    """What is said is shown once the lease is renewed."""
    owner, turn = await begun(rig)
    client = await owner.follow(start=True)
    owner.journal.refuse("renew")
    owner.clock.advance(LATER)
    going_on = asyncio.ensure_future(turn.text("hidden"))
    await eventually(lambda: owner.journal.calls.count("renew") >= 2)
    await client.pinged()
    assert client.kinds == ["turn.started"]
    assert not going_on.done()
    owner.journal.heal()
    await client.until("text.delta")
    await going_on


async def test_an_owner_that_cannot_renew_starts_no_tool(rig: Rig) -> None:
    """The call is durable, but the lease ran out meanwhile: the tool waits until it is renewed."""
    entered = asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        entered.set()
        return "paid"

    owner, turn = await begun(rig)
    gate = Gate()
    faults: dict[str, Fault] = {"append": gate, "renew": "refuse"}
    owner.journal.rule = faults.get
    calling = asyncio.create_task(turn.call(pay))
    await gate.stood()
    owner.clock.advance(LATER)
    gate.open()
    await eventually(lambda: owner.journal.calls.count("renew") >= 2)
    assert "tool.call" in types(await owner.stored())
    assert not entered.is_set()
    owner.journal.heal()
    assert await calling == "paid"


async def test_a_turn_whose_record_has_expired_is_ended_and_stands_in_nobodys_way(rig: Rig) -> None:
    """TTL deletes in no order: the head may still name a turn of which nothing else is left."""
    owner, _ = await begun(rig)
    await owner.engine.close()
    with sqlite3.connect(rig.path) as file:
        file.execute("DELETE FROM turns")
    other = rig.instance(Puppet(), "b")
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    await eventually(lambda: not other.engine.live)
    await other.start(turn="t2")
    records = await other.stored()
    assert types(records) == ["turn.started", "turn.resumed", "turn.failed", "turn.started"]
    assert '"code":"expired"' in records[2].data


async def test_a_turn_goes_on_from_exactly_its_committed_text(rig: Rig) -> None:
    """What the owner had shown and not committed is no part of it, nor is what belongs to no recorded piece."""
    owner, turn = await begun(rig)
    turn.text("kept ")
    await owner.live().writer.flush()
    gate = owner.journal.hold("append")
    turn.text("lost")
    await owner.shown("text.delta", 2)
    other = rig.instance(saying_again, "b")
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    assert (await other.ended()).output == "again"
    gate.open()
    await eventually(lambda: not owner.engine.live)
    assert types(await other.stored()) == WHOLE


async def test_a_fenced_owner_appends_nothing_and_closes_its_streams(rig: Rig) -> None:
    """The old owner wakes up in the middle of an append: the journal stays as the new one left it."""
    owner, turn = await begun(rig)
    client = await owner.follow(start=True)
    gate = owner.journal.hold("append")
    turn.text("zombie")
    await client.until("text.delta")
    other = rig.instance(Puppet(), "b")
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    before = await other.stored()
    gate.open()
    messages = await client.end()
    assert messages[-1].event == "stream.closing"
    assert '"reason":"lease"' in messages[-1].data
    await eventually(lambda: not owner.engine.live)
    assert await other.stored() == before


async def test_an_owner_that_says_nothing_learns_of_its_loss_when_it_renews(rig: Rig) -> None:
    owner, _ = await begun(rig, lease=0.3)
    client = await owner.follow(start=True)
    other = rig.instance(Puppet(), "b")
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    assert (await client.end())[-1].event == "stream.closing"
    assert unbroken(await other.stored())


async def test_a_once_tool_is_never_entered_when_its_owner_was_stopped_before_the_commit_of_its_call(rig: Rig) -> None:
    entered = asyncio.Event()

    @tool(effect="once")
    async def pay() -> None:
        entered.set()

    async def agent(turn: Turn) -> None:
        await turn.call(pay)

    owner = rig.instance(agent, "a")
    gate = owner.journal.hold("append")
    await owner.start()
    await gate.stood()
    other = rig.instance(Puppet(), "b")
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    gate.open()
    await eventually(lambda: not owner.engine.live)
    assert not entered.is_set()
    assert types(await other.stored()) == ["turn.started", "turn.resumed"]


async def test_a_once_tool_is_never_entered_when_its_owner_was_stopped_after_the_commit_of_its_call(rig: Rig) -> None:
    """The call is durable, its answer comes when the lease has run out and the session is another's."""
    entered = asyncio.Event()

    @tool(effect="once")
    async def pay() -> None:
        entered.set()

    owner, turn = await begun(rig)
    gate = Gate(after=True)
    owner.journal.rule = nth(gate, 1, "append")
    calling = asyncio.create_task(turn.call(pay))
    await gate.stood()
    other = rig.instance(Puppet(), "b")
    for instance in (owner, other):
        instance.clock.advance(LATER)
    await other.engine.take_over(KEY)
    gate.open()
    await asyncio.wait({calling}, timeout=PATIENCE)
    assert calling.exception() is not None
    assert not entered.is_set()


async def test_a_turn_left_for_longer_than_its_events_are_kept_ends_as_expired(rig: Rig) -> None:
    """Nobody reads a journal of which parts may be gone."""
    other = await abandoned(rig, "text")
    other.clock.advance(86400 - 3600)
    await other.engine.take_over(KEY)
    record = await other.ended()
    assert record.error
    assert (record.status, record.error["code"]) == ("failed", "expired")


async def test_a_turn_cancelled_while_it_had_no_owner_ends_as_interrupted(rig: Rig) -> None:
    other = await abandoned(rig, "text")
    assert await other.gateway.cancel(KEY, "t1", "enough", "ann") is False
    record = await other.ended()
    assert (record.status, record.partial) == ("interrupted", "text")
    assert '"reason":"enough","by":"ann"' in (await other.stored())[-1].data


async def test_a_cancel_from_before_the_takeover_counts(rig: Rig) -> None:
    """The wish is in the journal; the owner died before it saw it."""
    owner, _ = await begun(rig)
    other = rig.instance(Puppet(), "b")
    await other.gateway.cancel(KEY, "t1", "enough", "ann")
    await owner.engine.close()
    other.clock.advance(LATER)
    await other.engine.take_over(KEY)
    assert (await other.ended()).status == "interrupted"


@pytest.mark.parametrize("fault", [None, "lose"])
async def test_of_instances_that_take_over_at_once_one_writes_a_fence(rig: Rig, fault: str | None) -> None:
    """Three see the same orphan at the same moment; also when the answers of their Commits are lost."""
    others = [await abandoned(rig, "text"), *(rig.instance(saying_again) for _ in range(2))]
    gates = [Gate() for _ in others]
    for instance, gate in zip(others, gates, strict=True):
        instance.clock.offset = others[0].clock.offset
        instance.journal.rule = nth(gate, 1, "commit")
    taking = [asyncio.create_task(instance.engine.take_over(KEY)) for instance in others]
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    for instance, gate in zip(others, gates, strict=True):
        instance.journal.rule = nth("lose", 1, "commit") if fault else instance.journal.rule
        gate.open()
    await asyncio.gather(*taking)
    await others[0].ended()
    records = await others[0].stored()
    assert types(records) == WHOLE
    assert [record.epoch for record in records] == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("fault", ["refuse", "lose"])
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_takeover_survives_the_failure_of_any_of_its_calls(rig: Rig, fault: Fault, number: int) -> None:
    """The turn is fenced once, gone on with and ends once."""
    other = await abandoned(rig, "text")
    other.journal.rule = nth(fault, number, "standing", "turn", "private", "read", "commit")
    await other.engine.take_over(KEY)
    assert (await other.ended()).output == "again"
    assert types(await other.stored()) == WHOLE


async def test_a_takeover_that_nobody_waits_for_says_in_the_log_why_it_failed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = await abandoned(rig, "text")
    monkeypatch.setattr(other.journal, "turn", refusing)
    other.engine.adopt(KEY)
    await eventually(lambda: "session s1 of ann cannot be taken over" in caplog.text)
    assert "not allowed" in caplog.text


async def refusing(key: SessionKey, turn: str) -> TurnRecord | None:
    raise JournalRejected("not allowed")


async def test_a_takeover_that_a_late_append_refuses_looks_again_at_once(rig: Rig) -> None:
    """Its owner had been thought lost, and wrote once more between the look and the fence."""
    owner, turn = await begun(rig)
    other = rig.instance(saying_again, "b")
    other.clock.advance(LATER)
    gate = Gate()
    other.journal.rule = nth(gate, 1, "commit")
    taking = asyncio.create_task(other.engine.take_over(KEY))
    await gate.stood()
    turn.text("late")
    await owner.live().writer.flush()
    gate.open()
    assert await taking
    await other.ended()
    assert types(await other.stored()) == WHOLE


async def test_a_takeover_that_is_refused_again_and_again_is_left_for_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, turn = await begun(rig)
    other, refused = rig.instance(saying_again, "b"), count()
    other.clock.advance(LATER)

    commit = other.journal.commit

    async def late(key: SessionKey, wanted: Commit) -> Commit:
        turn.text(f"late {next(refused)}")
        await owner.live().writer.flush()
        return await commit(key, wanted)

    monkeypatch.setattr(other.journal, "commit", late)
    async with asyncio.timeout(PATIENCE):
        assert await other.engine.take_over(KEY) is None
    assert next(refused) == LOOKS


async def test_who_follows_an_abandoned_turn_takes_it_over(rig: Rig) -> None:
    """A reader is enough: it is given the fence, what follows it, and the end."""
    other = await abandoned(rig, "text")
    client = await other.follow(start=True)
    await client.end()
    assert client.kinds == WHOLE


async def test_a_snapshot_taken_where_a_fenced_owner_still_runs_is_not_followed_by_its_events(rig: Rig) -> None:
    """The old owner, which knows nothing yet, has shown more than the new one took over."""
    owner, turn = await begun(rig)
    owner.journal.hold("append")
    for word in "abcdef":
        turn.text(word)
    await owner.shown("text.delta", 6)
    other = rig.instance(saying_again, "b")
    other.clock.advance(LATER)
    other.journal.rule = nth(Gate(), 2, "commit")
    taking = asyncio.create_task(other.engine.take_over(KEY))
    await eventually(lambda: other.journal.calls.count("commit") == 2)
    client = await owner.follow(turn=None)
    await client.until("snapshot")
    await client.pinged(2)
    assert client.kinds == ["snapshot"]
    other.journal.heal()
    await client.leave()
    taking.cancel()
