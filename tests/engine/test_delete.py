"""Deleting a session: what runs is fenced, what follows starts on new numbers, and nothing of the past comes back."""

from __future__ import annotations

import asyncio

import pytest

from engine.rig import KEY, PATIENCE, Gate, Instance, Puppet, Rig, eventually, nth, types
from legato.agents import Turn
from legato.errors import JournalUnavailable, NotFound
from legato.journal import Commit, Control, Decision


async def saying(turn: Turn) -> None:
    await turn.text("said")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_deleting_a_session_stops_its_turn_and_leaves_nothing(rig: Rig, where: str) -> None:
    """Its agent is torn down, its streams end, and it is not there any more."""
    torn = asyncio.Event()

    async def agent(turn: Turn) -> None:
        turn.text("secret")
        try:
            await asyncio.Event().wait()
        finally:
            torn.set()

    owner, other = rig.instance(agent, lease=60 if where == "here" else 0.3), rig.instance(agent)
    await owner.start()
    client = await owner.follow(start=True)
    await client.until("text.delta")
    await owner.gateway.cancel(KEY, "t0", "early", "ann")
    await (owner if where == "here" else other).gateway.delete(KEY)
    await client.end()
    await asyncio.wait_for(torn.wait(), PATIENCE)
    await eventually(lambda: not owner.engine.live)
    assert not any("secret" in record.data for record in await owner.stored())
    assert await owner.journal.turns(KEY, None, 10) == []
    assert await owner.journal.control(KEY) is None
    for asked in (owner.gateway.snapshot(KEY, None), other.gateway.delete(KEY), other.follow(turn=None)):
        with pytest.raises(NotFound):
            await asked
    assert (await owner.gateway.sessions("ann", None, 10))["sessions"] == []


async def test_a_session_that_never_was_cannot_be_deleted(rig: Rig) -> None:
    with pytest.raises(NotFound):
        await rig.instance(saying).gateway.delete(KEY)


async def test_a_deleted_session_starts_anew_behind_its_old_numbers(rig: Rig) -> None:
    """Seq and epoch go on, so that no cursor of the past fits; the same turn id may be used again."""
    instance = rig.instance(saying)
    old = await instance.play()
    await instance.gateway.delete(KEY)
    new = await instance.play()
    assert types(new) == ["turn.started", "text.delta", "turn.completed"]
    assert new[0].seq > old[-1].seq
    assert new[0].epoch > old[-1].epoch
    client = await instance.follow(old[-1].cursor, None)
    assert (await client.until("snapshot")).id == str(new[-1].cursor)
    assert len((await instance.gateway.snapshot(KEY, None))["turns"]) == 1
    await client.leave()


async def frozen(rig: Rig) -> tuple[Instance, Gate]:
    """An owner that stands still in the middle of an append, and knows nothing of what others do."""
    puppet = Puppet()
    owner = rig.instance(puppet, lease=60)
    await owner.start()
    gate = Gate()
    owner.journal.rule = nth(gate, 1, "append")
    (await puppet.turn()).text("zombie")
    await gate.stood()
    return owner, gate


async def test_an_owner_that_slept_through_the_deletion_is_refused(rig: Rig) -> None:
    """It wakes up, and nothing that it writes is there."""
    owner, gate = await frozen(rig)
    other = rig.instance(saying)
    await other.gateway.delete(KEY)
    gate.open()
    await eventually(lambda: not owner.engine.live)
    assert not any("zombie" in record.data for record in await other.stored())


async def test_an_owner_that_slept_through_deletion_and_new_start_is_refused(rig: Rig) -> None:
    """The new turn is whole, and nobody sees a word of the old one."""
    owner, gate = await frozen(rig)
    other = rig.instance(saying)
    await other.gateway.delete(KEY)
    await other.play(turn="t2")
    gate.open()
    await eventually(lambda: not owner.engine.live)
    client = await other.follow(turn="t2", start=True)
    await client.end()
    assert client.kinds == ["turn.started", "text.delta", "turn.completed"]
    assert not any("zombie" in record.data for record in await other.stored())


@pytest.mark.parametrize("turn", ["t2", None])
async def test_an_owner_that_sleeps_on_shows_nobody_what_it_says_in_place_of_the_new_turn(
    rig: Rig, turn: str | None
) -> None:
    """It serves on meanwhile, and its feed has reached the seqs at which the new turn begins."""
    owner, gate = await frozen(rig)
    other = rig.instance(saying)
    await other.gateway.delete(KEY)
    await other.play(turn="t2")
    client = await owner.follow(turn=turn, start=True)
    await client.sees(lambda: any('"t2"' in data for data in client.data))
    assert not any("zombie" in data for data in client.data)
    await client.leave()
    gate.open()


@pytest.mark.parametrize("active", [False, True])
async def test_a_turn_that_begins_before_the_purge_is_not_purged(rig: Rig, active: bool) -> None:
    """It loses neither its lease, its events, its record nor the cancel that was asked for it."""
    old, new = Puppet(), Puppet()
    deleter, starter = rig.instance(old, lease=60), rig.instance(new, lease=0.3)
    await deleter.start()
    if not active:
        old.leave()
        await deleter.ended()
    gate = deleter.journal.hold("purge")
    deleting = asyncio.create_task(deleter.gateway.delete(KEY))
    await gate.stood()
    await starter.start(turn="t2")
    (await new.turn()).text("said")
    unheard = starter.journal.hold("control")
    await deleter.gateway.cancel(KEY, "t2", "enough", "ann")
    gate.open()
    await deleting
    control = await deleter.journal.control(KEY)
    assert control
    assert list(control.cancels) == ["t2"]
    unheard.open()
    await starter.ended("t2")
    assert types([e for e in await starter.stored() if '"turn":"t2"' in e.data]) == [
        "turn.started", "text.delta", "turn.interrupted",
    ]  # fmt: skip


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.engine.runtime.ANSWER_SECONDS", 0.1)
    instance = rig.instance(saying)
    await instance.play()
    instance.journal.refuse("purge")
    with pytest.raises(JournalUnavailable):
        await instance.gateway.delete(KEY)
    instance.journal.heal()
    with pytest.raises(NotFound):
        await instance.gateway.delete(KEY)
    assert await instance.stored() == []


async def test_a_deletion_withdraws_the_decisions_asked_before(rig: Rig) -> None:
    instance = rig.instance(saying)
    await instance.play()
    decided = Control({}, 1 << 50, decisions={"t1": {"r1": Decision(True, "ann", None, 1)}})
    await instance.journal.commit(KEY, Commit(control=decided))
    await instance.gateway.delete(KEY)
    assert await instance.journal.control(KEY) is None
