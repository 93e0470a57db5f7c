"""Starting a turn: once for each id, one at a time for each session, and whoever asks may leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.payment import Payment
from engine.rig import KEY, Client, Puppet, Rig, ends, types, unbroken
from legato.agents import Turn
from legato.errors import InputTooLarge, Invalid, JournalUnavailable, SessionBusy, TurnConflict
from legato.events import Event, TextDelta
from legato.journal import Segment, SessionKey


async def saying(turn: Turn) -> None:
    await turn.text("said")


async def test_the_same_id_ten_times_at_once_is_one_turn(rig: Rig) -> None:
    """On two instances; one request began it, the others found it."""
    instances = [rig.instance(saying), rig.instance(saying)]
    started = await asyncio.gather(*(instances[n % 2].start("input") for n in range(10)))
    assert sorted(one.created for one in started) == [False] * 9 + [True]
    await asyncio.gather(*(instance.ended() for instance in instances))
    assert types(await instances[0].stored()) == ["turn.started", "text.delta", "turn.completed"]


@pytest.mark.parametrize("other", [{"script": "other"}, {"script": "input", "agent": "second"}])
async def test_an_id_used_with_another_input_or_agent_is_a_conflict(rig: Rig, other: dict[str, Any]) -> None:
    instance = rig.instance(saying)
    await instance.play("input")
    with pytest.raises(TurnConflict):
        await instance.start(**other)


@pytest.mark.parametrize(("first", "second"), [(True, 1), (1, 1.0), ({"a": [0]}, {"a": [False]})])
async def test_what_python_calls_equal_is_not_the_same_input(rig: Rig, first: Any, second: Any) -> None:
    instance = rig.instance(saying)
    await instance.play(first)
    with pytest.raises(TurnConflict):
        await instance.start(second)
    assert not (await instance.start(first)).created


async def test_an_ended_turn_is_found_by_its_id(rig: Rig) -> None:
    """Started again it is streamed from its beginning, not run."""
    instance = rig.instance(saying)
    records = await instance.play("input")
    started = await instance.start("input")
    assert not started.created
    assert started.record.output == "said"
    assert await instance.stored() == records


async def test_an_agent_that_does_not_exist_is_named(rig: Rig) -> None:
    with pytest.raises(Invalid, match="nobody"):
        await rig.instance(saying).start(agent="nobody")


async def test_input_over_its_limit_is_refused(rig: Rig) -> None:
    with pytest.raises(InputTooLarge):
        await rig.instance(saying, input_bytes=10).start("x" * 9)


async def test_a_session_with_an_active_turn_is_busy(rig: Rig) -> None:
    """The error names the turn; on either instance."""
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    await owner.start()
    for instance in (owner, other):
        with pytest.raises(SessionBusy) as busy:
            await instance.start(turn="t2")
        assert busy.value.turn == "t1"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_new_turn_can_replace_the_active_one(rig: Rig, where: str) -> None:
    """The old one ends as interrupted before the new one begins."""
    owner = rig.instance(Puppet())
    await owner.start()
    instance = rig.instance(saying)
    await (instance if where == "elsewhere" else owner).start(turn="t2", if_active="interrupt")
    assert types(await owner.stored())[:3] == ["turn.started", "turn.interrupted", "turn.started"]


async def test_a_new_turn_reads_next_to_nothing_while_it_waits_for_the_one_in_its_way(rig: Rig) -> None:
    payment = Payment()
    instance = rig.instance(payment.agent)
    await instance.start()
    await payment.entered()
    client = await instance.follow(start=True)
    instance.journal.calls.clear()
    starting = asyncio.create_task(instance.start(turn="t2", if_active="interrupt"))
    await client.pinged(2)
    assert not starting.done()
    payment.going.set()
    await starting
    assert instance.journal.calls.count("standing") <= 4


async def test_a_new_turn_waits_for_a_once_tool_only_so_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be torn down is let finish; the request is told who is in the way, and its turn never begins."""
    monkeypatch.setattr("legato.engine.run.ANSWER_SECONDS", 0.3)
    payment = Payment()
    owner = rig.instance(payment.agent)
    await owner.start()
    await payment.entered()
    with pytest.raises(SessionBusy) as busy:
        await owner.start(turn="t2", if_active="interrupt")
    assert busy.value.turn == "t1"
    payment.going.set()
    assert (await owner.ended()).status == "interrupted"
    assert types(await owner.stored()) == ["turn.started", "tool.call", "tool.result", "turn.interrupted"]


async def test_an_orphan_in_the_way_is_gone_on_with_and_then_in_nobodys_way(rig: Rig) -> None:
    """Nobody else has to come by to take it over; whoever asked is told that it is busy."""
    owner, other = rig.instance(Puppet()), rig.instance(saying)
    await owner.start()
    await owner.engine.close()
    other.clock.advance(3600)
    with pytest.raises(SessionBusy):
        await other.start(turn="t2")
    await other.ended()
    records = await other.play(turn="t2")
    assert types(ends(records)) == ["turn.completed", "turn.completed"]
    assert unbroken(records)


async def test_an_orphan_is_interrupted_for_a_turn_that_may_replace_it(rig: Rig) -> None:
    """Its agent is not entered again."""
    owner, other = rig.instance(Puppet()), rig.instance(saying)
    await owner.start()
    await owner.engine.close()
    other.clock.advance(3600)
    await other.start(turn="t2", if_active="interrupt")
    await other.ended("t2")
    kinds = types(await other.stored())
    assert kinds == ["turn.started", "turn.resumed", "turn.interrupted", "turn.started", "text.delta", "turn.completed"]


async def test_a_request_that_leaves_in_mid_start_does_not_lose_its_turn(rig: Rig) -> None:
    """200 requests, each cancelled a little later than the one before; each turn is there and reaches its end."""
    instance = rig.instance(saying)
    for index in range(200):
        key = SessionKey("ann", f"s{index}")
        asking = asyncio.create_task(instance.start("input", key=key))
        for _ in range(1 + index % 50):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        started = await instance.start("input", key=key)
        assert (await instance.ended(key=key)).output == "said"
        assert started.record.turn == "t1"
        assert types(await instance.stored(key)) == ["turn.started", "text.delta", "turn.completed"]


async def test_a_start_while_the_journal_is_silent_is_answered_in_bounded_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so; sent again when the journal is back, it is one turn."""
    monkeypatch.setattr("legato.engine.runtime.ANSWER_SECONDS", 0.2)
    instance = rig.instance(saying)
    instance.journal.refuse()
    with pytest.raises(JournalUnavailable):
        await instance.start()
    instance.journal.heal()
    assert types(await instance.play()) == ["turn.started", "text.delta", "turn.completed"]


async def test_two_turns_started_at_once_in_one_session_run_one_after_the_other(rig: Rig) -> None:
    """One of them begins, the other is told of it."""
    puppets = [rig.instance(Puppet()), rig.instance(Puppet())]
    results = await asyncio.gather(
        *(instance.start(turn=f"t{n}") for n, instance in enumerate(puppets)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["SessionBusy", "Started"]
    assert types(await puppets[0].stored()) == ["turn.started"]


async def test_a_stream_of_a_start_begins_with_its_turn(rig: Rig) -> None:
    """Earlier turns of the session are not in it."""
    instance = rig.instance(saying)
    await instance.play()
    started = await instance.start(turn="t2")
    client = Client(instance.gateway.attach(KEY, started))
    messages = await client.end()
    assert [message.event for message in messages] == ["turn.started", "text.delta", "turn.completed"]
    assert all('"turn":"t2"' in message.data for message in messages)


async def test_a_session_that_rests_behind_a_late_owners_segment_takes_a_new_turn(rig: Rig) -> None:
    """Its head is trusted at first; the position that a segment holds is found by the Conflict."""
    instance = rig.instance(saying)
    await instance.play()
    last = (await instance.stored())[-1]
    late = Event(last.seq + 1, last.epoch, last.turn, 0, TextDelta(step=1, text="late")).encode()
    await instance.journal.append(KEY, Segment.of([late], "late", 10**15))
    started = await instance.start(turn="t2")
    assert started.record.first == last.seq + 2
