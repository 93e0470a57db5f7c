"""The snapshot of a session is one that it had, whatever happens while it is read."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Puppet, Rig, eventually
from legato import tool
from legato.agents import Turn
from legato.engine.recovery import recover
from legato.engine.view import _assemble, view
from legato.events import Event, TurnResumed
from legato.journal import Segment, SessionKey

DAYS = 2 * 86400


async def saying(turn: Turn) -> None:
    await turn.text("said")


def at_first(instead: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, whose first answer is `instead`."""
    answers = iter([instead])

    async def asked(*args: Any) -> Any:
        given = await method(*args)
        return next(answers, given)

    return asked


async def test_a_snapshot_never_passes_the_start_of_a_turn_that_it_does_not_show(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has read the documents just before the turn began, and the newest position just after."""
    instance = rig.instance(saying)
    await instance.play()
    journal, records = instance.journal, await instance.journal.turns(KEY, None, 21)
    before = await journal.standing(KEY)
    await rig.instance(Puppet()).start(turn="t2")
    torn = replace(before, last=(await journal.standing(KEY)).last)
    monkeypatch.setattr(journal, "standing", at_first(torn, journal.standing))
    monkeypatch.setattr(journal, "turns", at_first(records, journal.turns))
    seen = await view(instance.runtime, KEY)
    assert seen
    assert seen.state.active
    assert seen.state.active.turn == "t2"


async def test_a_session_whose_newest_turn_has_expired_still_has_a_snapshot(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TTL policy deletes in no order."""
    instance = rig.instance(saying)
    await instance.play()
    await instance.play(turn="t2")
    older = (await instance.journal.turns(KEY, None, 21))[:1]
    monkeypatch.setattr(instance.journal, "turns", lambda *_: asyncio.sleep(0, older))
    seen = await asyncio.wait_for(view(instance.runtime, KEY), PATIENCE)
    assert seen
    assert [turn.turn for turn in seen.state.turns] == ["t1"]


async def test_a_snapshot_without_events_never_passes_the_end_of_a_turn_that_it_shows_running(rig: Rig) -> None:
    """Its events have expired, and it ends between the look at its record and the look at the journal's head."""
    puppet = Puppet()
    owner, other = rig.instance(puppet), rig.instance(puppet)
    await owner.start()
    await puppet.turn()
    other.clock.advance(DAYS)
    gate = other.journal.hold("standing")
    seeing = asyncio.create_task(view(other.runtime, KEY))
    await gate.stood()
    puppet.leave()
    await owner.ended()
    gate.open()
    seen = await seeing
    assert seen
    assert (seen.state.active, [turn.status for turn in seen.state.turns]) == (None, ["completed"])


async def test_a_turn_none_of_whose_events_are_left_is_still_the_active_one(rig: Rig) -> None:
    """TTL has deleted them all, and with them the journal's newest position."""
    instance = rig.instance(Puppet())
    await instance.start("input")
    stored = await instance.journal.standing(KEY)
    instance.clock.advance(DAYS)
    record = await instance.record()
    seen = await _assemble(instance.runtime, KEY, replace(stored, last=0), [record], settled=True)
    assert seen
    assert seen.active
    assert seen.active.input == "input"


async def test_a_turn_none_of_whose_events_are_left_is_not_gone_on_with(rig: Rig) -> None:
    """What its tools did is not known any more."""
    instance = rig.instance(Puppet())
    await instance.start("input")
    instance.clock.advance(DAYS)
    found = await recover(instance.runtime, KEY, await instance.record(), 0)
    assert not found.whole


async def test_a_turn_whose_first_position_was_handed_out_again_is_not_gone_on_with(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTL has emptied the journal, and an owner has begun an epoch there and was lost."""
    instance = rig.instance(Puppet())
    await instance.start("input")
    fence = Event(1, 2, "t1", 0, TurnResumed(reason="lease_expired", attempt=1)).encode()
    left = [Segment.of([fence], "c", 1 << 50)]
    monkeypatch.setattr(instance.journal, "read", at_first(left, instance.journal.read))
    found = await recover(instance.runtime, KEY, await instance.record(), 1)
    assert not found.whole


async def test_a_snapshot_takes_up_a_page_of_a_turn_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a turn that runs has said and done."""
    puppet = Puppet()
    owner, other = rig.instance(puppet), rig.instance(puppet)
    await owner.start()
    turn = await puppet.turn()
    for _ in range(20):
        turn.text("w ")
        await owner.live().writer.flush()
    given, most, read = list[weakref.ref[str]](), 0, other.journal.read

    class Text(str):
        """Can be seen to be let go."""

    async def one(key: SessionKey, since: int, now: int, limit: int = 1000) -> list[Segment]:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in given))
        page = [replace(segment, events=Text(segment.events)) for segment in await read(key, since, now, 1)]
        given.extend(weakref.ref(segment.events) for segment in page)
        return page

    monkeypatch.setattr(other.journal, "read", one)
    seen = await view(other.runtime, KEY)
    assert seen
    assert seen.state.active
    assert seen.state.active.text == "w " * 20
    assert (len(given), most) == (21, 1)


async def test_a_snapshot_says_that_a_turn_which_waited_streams_again_when_its_events_have_expired(rig: Rig) -> None:
    """Its record still says that it waits."""

    @tool(effect="read", approval="Go?")
    async def endless() -> None:
        await asyncio.Event().wait()

    async def agent(turn: Turn) -> None:
        await turn.call(endless)

    one, other = rig.instance(agent), rig.instance(agent)
    await one.start()
    await eventually(lambda: not one.engine.live)
    await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await one.shown("approval.resolved")
    other.clock.advance(DAYS)
    active = (await other.gateway.snapshot(KEY, None))["active"]
    assert (active["turn"], active["status"]) == ("t1", "streaming")
