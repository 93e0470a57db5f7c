"""Turns that nobody owns and no client asks for are gone on with by whoever sweeps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from engine.payment import Payment
from engine.rig import KEY, PATIENCE, Gate, Instance, Rig, ends, eventually, nth, types, unbroken
from legato import Agent, tool
from legato.agents import Turn
from legato.events import ApprovalResolved
from legato.journal import Decision, SessionKey, Standing
from legato.models.scripted import ScriptedModel
from legato.sweeper import Sweeper, Swept

PLENTY = 3600


async def stuck(turn: Turn) -> None:
    turn.text("half ")
    await asyncio.Event().wait()


async def quick(turn: Turn) -> None:
    turn.text("half whole")


async def swept(instance: Instance) -> Swept:
    """The figures of a sweep, but for its seconds."""
    async with asyncio.timeout(PATIENCE):
        return replace(await Sweeper(instance.runtime, instance.engine).sweep(), seconds=0)


async def abandoned(rig: Rig, *keys: SessionKey, agent: object = stuck) -> None:
    """Turns whose owner is lost; the first of `keys` is the one left alone for longest."""
    owner = rig.instance(agent)
    for key in keys:
        await owner.start(key=key)
        owner.clock.advance(0.01)
    for key in keys:
        await owner.live(key).writer.flush()
    owner.journal.refuse()


def later(rig: Rig, agent: object = quick, **settings: Any) -> Instance:
    """An instance for which every lease has run out."""
    instance = rig.instance(agent, **settings)
    instance.clock.advance(PLENTY)
    return instance


def several(count: int) -> Sequence[SessionKey]:
    return [SessionKey(f"u{n % 3}", f"s{n}") for n in range(count)]


async def standing_of(instance: Instance, key: SessionKey = KEY) -> Standing:
    return await instance.journal._journal.standing(key)


async def test_a_turn_that_nobody_asks_for_is_gone_on_with_to_its_end(rig: Rig) -> None:
    await abandoned(rig, KEY)
    sweeper = later(rig)
    assert await swept(sweeper) == Swept(found=1, ended=1)
    assert (await sweeper.record()).output == "half whole"
    assert unbroken(await sweeper.stored())


async def test_a_sweep_that_finds_nothing_asks_the_journal_once(rig: Rig) -> None:
    sweeper = later(rig)
    assert await swept(sweeper) == Swept()
    assert sweeper.journal.calls == ["orphans"]


async def test_a_turn_that_is_owned_is_left_alone_however_long_it_runs(rig: Rig) -> None:
    owner, sweeper = rig.instance(stuck), rig.instance(quick)
    await owner.start()
    for instance in (owner, sweeper):
        instance.clock.advance(PLENTY)
    await owner.live().holding.renew()
    assert await swept(sweeper) == Swept()
    assert sweeper.journal.calls == ["orphans"]


async def test_turns_beyond_the_number_at_a_time_are_left_to_the_next_sweep(rig: Rig) -> None:
    keys = several(3)
    await abandoned(rig, *keys)
    first, second = later(rig, stuck, sweep_turns=2, sweep_seconds=0.3), later(rig)
    assert await swept(first) == Swept(found=2, handed_back=2)
    assert [(await standing_of(first, key)).epoch for key in keys] == [2, 2, 1]
    second.clock.advance(PLENTY)
    assert await swept(second) == Swept(found=3, ended=3)


async def test_a_turn_that_ends_makes_room_for_the_next_one(rig: Rig) -> None:
    await abandoned(rig, *several(5))
    assert await swept(later(rig, sweep_turns=2)) == Swept(found=5, ended=5)


async def test_two_sweeps_at_once_share_the_work(rig: Rig) -> None:
    keys = several(8)
    await abandoned(rig, *keys)
    both = await asyncio.gather(*(swept(later(rig, sweep_turns=3)) for _ in range(2)))
    assert sum(one.ended for one in both) == len(keys)
    assert not any(one.lost or one.refused for one in both)
    reader = rig.instance(quick)
    for key in keys:
        stored = await reader.stored(key)
        assert (types(stored).count("turn.resumed"), len(ends(stored))) == (1, 1)


async def test_a_turn_that_cannot_be_taken_over_keeps_nobody_behind_it_waiting(rig: Rig) -> None:
    bad, good = several(2)
    await abandoned(rig, bad, good)
    with closing(sqlite3.connect(rig.path)) as db, db:
        db.execute("UPDATE segments SET events = '[{' WHERE session = ?", (bad.session,))
    sweeper = later(rig, sweep_turns=1)
    assert await swept(sweeper) == Swept(found=2, ended=1, refused=1)
    assert (await sweeper.record(key=good)).status == "completed"


async def test_a_turn_that_is_out_of_time_goes_on_in_the_next_sweep_as_if_its_owner_had_let_go(rig: Rig) -> None:
    """No owner is counted as lost, what was done is not done again, and nobody waits for a lease."""
    done = list[str]()

    @tool(effect="once")
    async def pay(*, key: str) -> None:
        done.append(key)

    def agent(last: object) -> object:
        async def paying(turn: Turn) -> None:
            await turn.call(pay)
            await last(turn)  # type: ignore[operator]

        return paying

    await abandoned(rig, KEY, agent=stuck)
    first, second = later(rig, agent(stuck), sweep_seconds=0.3), later(rig, agent(quick))
    assert await swept(first) == Swept(found=1, handed_back=1)
    lease = (await standing_of(first)).lease
    assert lease
    assert (lease.expires_at, lease.attempts) == (0, 1)
    assert lease.sweep_at is not None
    assert lease.sweep_at <= first.clock()
    assert await swept(second) == Swept(found=1, ended=1)
    assert (done, (await second.record()).status) == (["s1/t1/1-1"], "completed")


async def test_a_once_tool_that_runs_is_let_finish_before_its_turn_is_handed_back(rig: Rig) -> None:
    payment = Payment()

    async def agent(turn: Turn) -> None:
        await turn.call(payment.tool)
        await asyncio.Event().wait()

    await abandoned(rig, KEY)
    sweeper = later(rig, agent, sweep_seconds=0.1)
    sweeping = asyncio.create_task(swept(sweeper))
    await payment.entered()
    live = sweeper.live()
    await eventually(lambda: live._handed_back)
    assert (await standing_of(sweeper)).owned(sweeper.clock())
    payment.going.set()
    assert await sweeping == Swept(found=1, handed_back=1)
    assert types(await sweeper.stored())[-1] == "tool.result"


async def test_an_instance_that_drains_takes_up_nothing_more(rig: Rig) -> None:
    await abandoned(rig, *several(2))
    sweeper = later(rig, stuck, sweep_turns=1, drain=0)
    sweeping = asyncio.create_task(swept(sweeper))
    await eventually(lambda: bool(sweeper.engine.live))
    await sweeper.gateway.drain()
    assert await sweeping == Swept(found=1, handed_back=1)


@pytest.fixture
def wired() -> list[int]:
    return []


def wiring(wired: list[int]) -> Agent:
    @tool(effect="once", approval="Wire it?")
    async def wire(amount: int) -> int:
        wired.append(amount)
        return amount

    return Agent(model=ScriptedModel(), tools=[wire])


async def waiting(rig: Rig, wired: list[int]) -> Instance:
    """A turn that waits for a person's approval."""
    owner = rig.instance(wiring(wired), approval=60)
    await owner.start('/tool wire {"amount": 5}\n/say 2')
    live = owner.live()
    await asyncio.wait_for(live.over.wait(), PATIENCE)
    assert types(await owner.stored())[-1] == "turn.suspended"
    return owner


async def test_a_question_that_nobody_answered_in_time_is_denied_and_its_turn_goes_on(
    rig: Rig, wired: list[int]
) -> None:
    await waiting(rig, wired)
    sweeper = later(rig, wiring(wired))
    assert await swept(sweeper) == Swept(found=1, ended=1)
    (resolved,) = [record.decode().payload for record in await sweeper.stored() if record.type == "approval.resolved"]
    assert isinstance(resolved, ApprovalResolved)
    assert (resolved.approved, resolved.by) == (False, "expiry")
    record = await sweeper.record()
    assert (record.status, record.output, wired) == ("completed", "w1 w2 ", [])


async def test_a_question_that_may_still_be_answered_is_left_open(rig: Rig, wired: list[int]) -> None:
    await waiting(rig, wired)
    assert await swept(rig.instance(wiring(wired))) == Swept()


async def test_a_turn_whose_answer_comes_while_it_is_put_to_rest_is_still_seen_to_its_end(
    rig: Rig, wired: list[int]
) -> None:
    owner = rig.instance(stuck)
    await owner.start('/tool wire {"amount": 5}\n/say 2')
    owner.journal.refuse()
    sweeper, gate = later(rig, wiring(wired)), Gate()
    sweeper.journal.rule = nth(gate, 3, "commit")
    sweeping = asyncio.create_task(swept(sweeper))
    await gate.stood()
    other = rig.instance(stuck)
    decision = Decision(True, "ann", None, sweeper.clock())
    await other.engine.decide(KEY, "t1", "1-1-1", decision, await other.journal.standing(KEY))
    gate.open()
    assert await sweeping == Swept(found=1, ended=1)
    assert wired == [5]


async def test_a_turn_that_someone_wanted_cancelled_when_nobody_owned_it_is_interrupted(rig: Rig) -> None:
    await abandoned(rig, KEY)
    sweeper = later(rig)
    await sweeper.engine.cancel(KEY, "t1", "enough", "ann")
    assert await swept(sweeper) == Swept(found=1, ended=1)
    assert (await sweeper.record()).status == "interrupted"


async def test_a_journal_that_falls_silent_delays_no_answer_and_what_it_took_up_is_handed_back_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.sweeper.HAND_BACK_SECONDS", 0.1)
    await abandoned(rig, KEY)
    sweeper = later(rig, stuck, sweep_seconds=0.1)
    gate = Gate()
    sweeper.journal.rule = nth(gate, 1, "commit")
    sweeps = Sweeper(sweeper.runtime, sweeper.engine)
    figures = await asyncio.wait_for(sweeps.sweep(), PATIENCE)
    assert replace(figures, seconds=0) == Swept(found=1, running=1)
    gate.open()
    await asyncio.wait(sweeps._working, timeout=PATIENCE)
    lease = (await standing_of(sweeper)).lease
    assert lease
    assert (lease.epoch, lease.expires_at) == (2, 0)
