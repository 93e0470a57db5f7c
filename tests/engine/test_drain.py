"""An instance that is about to end: what can, ends here; everything else goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from engine.payment import Payment
from engine.rig import KEY, PATIENCE, Client, Gate, Instance, Puppet, Rig, eventually, nth, types
from legato.agents import Call, Turn
from legato.engine.drain import LAST_SECONDS, RELEASE_SECONDS
from legato.engine.endings import LOST_OWNERS
from legato.engine.fences import lost_owners
from legato.errors import Draining
from legato.journal import Lease, SessionKey
from legato.tools import ToolContext, tool


async def lease_of(instance: Instance) -> Lease:
    lease = (await instance.journal._journal.standing(KEY)).lease
    assert lease
    return lease


PATIENT: dict[str, Any] = {"ping": 60, "lease": 60}


def waiting(instance: Instance, looks: int) -> bool:
    """So many times a session was looked after, and nothing here does anything but wait."""
    calls = instance.journal.calls
    return calls.count("standing") >= looks and calls[-1] == "wait"


def reason(client: Client) -> str:
    last = client.messages[-1]
    assert last.event == "stream.closing"
    return str(json.loads(last.data)["reason"])


async def speaking(turn: Turn) -> None:
    await turn.text("hello")
    await asyncio.Event().wait()


async def test_a_turn_that_ends_in_time_ends_here(rig: Rig) -> None:
    puppet = Puppet()
    instance = rig.instance(puppet)
    await instance.start()
    client = await instance.follow(start=True)
    draining = asyncio.create_task(instance.gateway.drain())
    await (await puppet.turn()).text("hello")
    puppet.leave()
    await draining
    assert [message.event for message in await client.end()][-1] == "turn.completed"
    assert (await instance.record()).status == "completed"


async def test_a_turn_that_does_not_end_in_time_is_handed_back_with_all_it_said(rig: Rig) -> None:
    instance = rig.instance(speaking, drain=0.05, flush=5)
    await instance.start()
    client = await instance.follow(start=True)
    await client.until("text.delta")
    await instance.gateway.drain()
    await client.end()
    assert reason(client) == "draining"
    assert types(await instance.stored()) == ["turn.started", "text.delta"]
    standing = await instance.journal._journal.standing(KEY)
    assert standing.head
    assert standing.head.turn == ("t1", "streaming")
    assert standing.lease
    assert (standing.lease.expires_at, standing.lease.attempts, standing.lease.epoch) == (0, 0, 1)


async def test_a_tool_that_may_run_again_is_torn_down_and_its_call_left_unsettled(rig: Rig) -> None:
    entered, torn = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def look() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            torn.set()

    async def agent(turn: Turn) -> None:
        await turn.call(look)

    instance = rig.instance(agent, drain=0)
    await instance.start()
    await asyncio.wait_for(entered.wait(), PATIENCE)
    await instance.gateway.drain()
    assert torn.is_set()
    assert types(await instance.stored()) == ["turn.started", "tool.call"]
    assert (await lease_of(instance)).expires_at == 0


async def test_the_lease_is_not_released_before_a_running_once_tool_is_recorded(rig: Rig) -> None:
    payment = Payment()
    instance = rig.instance(payment.agent, drain=0)
    await instance.start()
    await payment.entered()
    client = await instance.follow(start=True)
    draining = asyncio.create_task(instance.gateway.drain())
    await client.end()
    assert reason(client) == "draining"
    assert (await lease_of(instance)).expires_at > instance.clock()
    gate = Gate()
    instance.journal.rule = nth(gate, 1, "append")
    payment.going.set()
    await gate.stood()
    assert (await lease_of(instance)).expires_at > instance.clock()
    gate.open()
    await draining
    assert types(await instance.stored()) == ["turn.started", "tool.call", "tool.result"]
    assert (await lease_of(instance)).expires_at == 0


async def test_the_lease_of_a_once_tool_that_outlasts_its_instance_is_left_to_expire(rig: Rig) -> None:
    payment = Payment()
    instance = rig.instance(payment.agent, drain=0)
    await instance.start()
    await payment.entered()
    await instance.gateway.drain()
    assert (await lease_of(instance)).expires_at > instance.clock()
    payment.going.set()
    await eventually(lambda: not instance.engine.live)


async def test_an_owner_that_drains_under_a_once_tool_is_no_lost_one(rig: Rig) -> None:
    """Were it, three deployments under a slow tool would end the turn as a `crash_loop`."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    going = asyncio.Event()

    @tool(effect="once", timeout=60, reconcile=lambda key: None)
    async def pay() -> str:
        entered.put_nowait(None)
        await going.wait()
        return "paid"

    async def agent(turn: Turn) -> None:
        await turn.text(str(await turn.call(pay)))

    owners = [rig.instance(agent, drain=0) for _ in range(LOST_OWNERS + 1)]
    await owners[0].start()
    for number, owner in enumerate(owners):
        owner.clock.advance(3600 * number)
        await owner.engine.take_over(KEY)
        async with asyncio.timeout(PATIENCE):
            await entered.get()
        if owner is not owners[-1]:
            await owner.gateway.drain()
    going.set()
    assert (await owners[-1].ended()).output == "paid"


async def test_an_owner_that_drains_with_a_call_in_doubt_is_no_lost_one(rig: Rig) -> None:
    """It leaves its lease to run out, so that the doubt is not forgotten with it."""
    payment = Payment()
    owner, other = rig.instance(payment.agent), rig.instance(payment.agent, drain=0)
    await owner.start()
    await payment.entered()
    owner.journal.refuse()
    other.clock.advance(7)
    await other.engine.take_over(KEY)
    assert lost_owners(await other.journal.standing(KEY)) == 2
    await other.gateway.drain()
    payment.going.set()
    standing = await other.journal.standing(KEY)
    assert lost_owners(standing) == 1
    assert standing.lease
    assert standing.lease.expires_at > 0


async def test_an_agent_that_does_not_stop_keeps_nobody_from_its_turn(rig: Rig) -> None:
    leave = asyncio.Event()

    async def agent(turn: Turn) -> None:
        while not leave.is_set():
            with suppress(asyncio.CancelledError):
                await leave.wait()

    instance = rig.instance(agent, drain=0)
    await instance.start()
    try:
        await instance.gateway.drain()
        assert (await lease_of(instance)).expires_at == 0
    finally:
        leave.set()


async def test_a_cancelled_turn_ends_as_interrupted_while_its_instance_drains(rig: Rig) -> None:
    instance = rig.instance(speaking, drain=5)
    await instance.start()
    await instance.shown("text.delta")
    draining = asyncio.create_task(instance.gateway.drain())
    await instance.gateway.cancel(KEY, "t1", "enough", "ann")
    await draining
    assert (await instance.record()).status == "interrupted"


async def test_whoever_follows_another_instances_turn_is_sent_away_at_once(rig: Rig) -> None:
    """Though a turn of its own keeps this instance for a while."""
    owner, other = rig.instance(speaking, **PATIENT), rig.instance(speaking, **PATIENT, drain=6)
    await owner.start()
    await other.start(key=SessionKey("ann", "s2"))
    cursor = (await owner.shown("text.delta")).cursor
    client = await other.follow(start=True)
    await client.until("text.delta")
    poll = asyncio.create_task(other.gateway.poll(KEY, cursor=cursor, start=False, turn="t1", wait=60))
    await eventually(lambda: waiting(other, looks=1 + 2))
    draining = asyncio.create_task(other.gateway.drain())
    await client.end()
    answer = await poll
    assert reason(client) == "draining"
    assert answer
    assert (answer["events"], answer["more"]) == ([], True)
    assert not draining.done()
    draining.cancel()


async def test_a_poll_that_has_nothing_to_show_yet_is_refused(rig: Rig) -> None:
    owner, other = rig.instance(speaking), rig.instance(speaking)
    await owner.start()
    gate = other.journal.hold("turns")
    poll = asyncio.create_task(other.gateway.poll(KEY, cursor=None, start=False, turn=None, wait=60))
    await gate.stood()
    await other.gateway.drain()
    with pytest.raises(Draining):
        await poll


async def test_an_instance_that_drains_starts_nothing_and_writes_nothing(rig: Rig) -> None:
    instance = rig.instance(speaking)
    await instance.gateway.drain()
    instance.journal.calls.clear()
    with pytest.raises(Draining):
        await instance.start()
    with pytest.raises(Draining):
        await instance.follow(start=True)
    assert instance.journal.calls == []
    assert instance.gateway.health()["status"] == "draining"


async def test_a_start_that_has_not_been_committed_is_refused(rig: Rig) -> None:
    instance = rig.instance(speaking)
    gate = instance.journal.hold("standing")
    starting = asyncio.create_task(instance.start())
    await gate.stood()
    draining = asyncio.create_task(instance.gateway.drain())
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(Draining):
        await starting
    await draining
    assert await instance.stored() == []


async def test_a_start_that_is_being_committed_goes_on_and_is_handed_back(rig: Rig) -> None:
    instance = rig.instance(speaking, drain=0.1)
    gate = instance.journal.hold("commit")
    starting = asyncio.create_task(instance.start())
    await gate.stood()
    draining = asyncio.create_task(instance.gateway.drain())
    await asyncio.sleep(0)
    gate.open()
    assert (await starting).created
    await draining
    assert types(await instance.stored()) == ["turn.started", "text.delta"]
    assert (await lease_of(instance)).expires_at == 0


async def test_another_instance_takes_a_released_turn_over_within_a_second(rig: Rig) -> None:
    owner, other = rig.instance(speaking, **PATIENT, drain=0), rig.instance(speaking, **PATIENT)
    await owner.start()
    client = await other.follow(start=True)
    await client.until("text.delta")
    await eventually(lambda: waiting(other, looks=1))
    await owner.gateway.drain()
    released = time.monotonic()
    await client.until("turn.resumed")
    assert time.monotonic() - released < 1


async def test_an_instance_that_drains_takes_nothing_over(rig: Rig) -> None:
    owner, other = rig.instance(speaking, drain=0), rig.instance(speaking)
    await owner.start()
    await owner.shown("text.delta")
    await other.gateway.drain()
    await owner.gateway.drain()
    await other.engine.take_over(KEY)
    assert types(await owner.stored()) == ["turn.started", "text.delta"]


async def test_a_journal_that_does_not_answer_delays_nobody(rig: Rig) -> None:
    instance = rig.instance(speaking, drain=0.1, flush=5)
    await instance.start()
    client = await instance.follow(start=True)
    await client.until("text.delta")
    instance.journal.refuse()
    began = time.monotonic()
    await instance.gateway.drain()
    await client.end()
    assert reason(client) == "draining"
    assert time.monotonic() - began < 0.1 + RELEASE_SECONDS + LAST_SECONDS + 0.3


async def test_a_once_tool_given_up_while_its_turn_is_handed_back_is_in_doubt(rig: Rig) -> None:
    hold, entered = threading.Event(), threading.Event()

    @tool(effect="once", timeout=0.3)
    def act() -> None:
        entered.set()
        hold.wait()

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, "act", {})])

    one = rig.instance(agent, drain=0)
    await one.start()
    try:
        await eventually(entered.is_set)
        await one.gateway.drain()
        lease = await one.journal._journal.lease(KEY)
        assert "tool.result" not in types(await one.stored())
        assert lease
        assert lease.expires_at > 0
    finally:
        hold.set()


async def test_a_tool_is_not_told_that_its_turn_is_cancelled_when_it_is_handed_back(rig: Rig) -> None:
    entered, told = threading.Event(), list[bool]()

    @tool(effect="once", timeout=0.5)
    def act(*, turn: ToolContext) -> str:
        entered.set()
        for _ in range(20):
            threading.Event().wait(0.01)
            told.append(turn.cancelled)
        return "stopped" if any(told) else "done"

    async def agent(turn: Turn) -> None:
        await turn.calls([Call(act, "act", {})])

    one = rig.instance(agent, drain=0)
    await one.start()
    await eventually(entered.is_set)
    await one.gateway.drain()
    results = [record for record in await one.stored() if record.type == "tool.result"]
    assert '"done"' in results[0].data
