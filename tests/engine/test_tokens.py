"""Streams whose callers' tokens end while a turn goes on: closed in time, prolonged by a fresh one, resumed exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from engine.rig import KEY, PATIENCE, Client, Instance, Puppet, Rig, eventually, unbroken
from legato import sse
from legato.agents import Turn
from legato.errors import NotFound, Unauthorized
from legato.events import Cursor, Record
from legato.journal import SessionKey
from legato.principal import Principal

LIFE = 1_000
TIMED = 3_000
"""Of a token whose end a test races with."""
HOUR = 3_600_000


def ann(instance: Instance, life: int = LIFE) -> Principal:
    """With a token of so many ms."""
    return Principal("ann", instance.clock() + life)


def closed(messages: list[sse.Message]) -> dict[str, object]:
    """What the last frame says, which closes the stream."""
    assert messages[-1].event == "stream.closing"
    said: dict[str, object] = json.loads(messages[-1].data)
    return said


def numbers(messages: list[sse.Message]) -> list[int]:
    return [Record.of(message.data).seq for message in messages if message.id]


async def say(turn: Turn) -> None:
    await turn.text("word")


class Side:
    """A turn that runs at `owner`, and the instance whose stream is read: there, or at another one.

    No ping comes while a token lasts: a stream has to look up by itself.
    """

    def __init__(self, rig: Rig, where: str) -> None:
        self.puppet = Puppet()
        self.owner = rig.instance(self.puppet, ping=PATIENCE)
        self.reads = self.owner if where == "here" else rig.instance(self.puppet, ping=PATIENCE)
        self.other = rig.instance(self.puppet)

    async def follow(self, life: int = LIFE, cursor: Cursor | None = None) -> Client:
        return await self.reads.follow(cursor, start=cursor is None, caller=ann(self.reads, life))

    async def begin(self, life: int = LIFE) -> Client:
        await self.owner.start()
        return await self.follow(life)


@pytest.fixture(params=["here", "elsewhere"])
async def side(rig: Rig, request: pytest.FixtureRequest) -> Side:
    return Side(rig, request.param)


async def test_a_stream_closes_as_auth_before_its_token_ends_while_the_turn_goes_on(side: Side) -> None:
    client = await side.begin(TIMED)
    ends = side.reads.clock() + TIMED
    messages = await client.end()
    assert side.reads.clock() < ends
    assert closed(messages) == {"reason": "auth", "retry_ms": 0}
    assert KEY in side.owner.engine.live


async def test_its_client_is_told_ahead_of_that_and_a_resume_with_a_fresh_token_loses_nothing(side: Side) -> None:
    client = await side.begin()
    turn = await side.puppet.turn()
    seen: list[sse.Message] = []
    for number in range(3):
        await turn.text(f"w{number} ")
        seen += await client.end()
        kinds = [message.event for message in seen]
        assert kinds.count("auth.expiring") == kinds.count("stream.closing") == number + 1
        client = await side.follow(cursor=Cursor.parse([message.id for message in seen if message.id][-1] or ""))
    side.puppet.leave()
    seen += await client.end()
    stored = await side.owner.stored()
    assert [message.data for message in seen if message.id] == [record.data for record in stored]
    assert unbroken(stored)


async def test_a_token_brought_to_another_instance_prolongs_a_stream_without_a_gap(side: Side) -> None:
    client = await side.begin(TIMED)
    turn = await side.puppet.turn()
    for number in range(2):
        await turn.text(f"w{number} ")
        told = json.loads((await client.until("auth.expiring", number + 1)).data)
        await side.other.gateway.prolong(KEY, client.id, Principal("ann", told["expires_at"] + TIMED))
    side.puppet.leave()
    messages = await client.end()
    assert messages[-1].event == "turn.completed"
    assert numbers(messages) == list(range(1, len(await side.owner.stored()) + 1))


@pytest.mark.parametrize("key", [SessionKey("bob", "s1"), SessionKey("ann", "s2")])
async def test_a_stream_takes_no_token_from_another_caller_nor_for_another_session(rig: Rig, key: SessionKey) -> None:
    side = Side(rig, "here")
    client = await side.begin()
    await client.until("auth.expiring")
    with pytest.raises(NotFound):
        await side.other.gateway.prolong(key, client.id, Principal(key.uid, side.other.clock() + HOUR))
    assert closed(await client.end())["reason"] == "auth"


async def test_events_do_not_wait_for_a_journal_that_cannot_be_told_of_a_token(rig: Rig) -> None:
    side = Side(rig, "here")
    client = await side.begin()
    turn = await side.puppet.turn()
    gate = side.owner.journal.hold("commit")
    await gate.stood()
    await turn.text("w1 ")
    await client.until("text.delta")
    assert closed(await client.end())["reason"] == "auth"
    assert "auth.expiring" not in client.kinds
    gate.open()


async def test_the_stream_that_leads_gives_up_the_lead_when_its_token_ends(rig: Rig) -> None:
    puppet = Puppet()
    instance = rig.instance(puppet, ahead_bytes=100)
    client = Client(instance.gateway.attach(KEY, await instance.start(), ann(instance)))
    assert closed(await client.end())["reason"] == "auth"
    turn = await puppet.turn()
    async with asyncio.timeout(2):
        for _ in range(10):
            await turn.text("word " * 50)
    assert not instance.live().writer.feed.lead.holds
    puppet.leave()


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_long_poll_is_answered_before_its_token_ends(rig: Rig, where: str) -> None:
    side = Side(rig, where)
    await side.owner.start()
    at = (await side.owner.shown("turn.started")).cursor
    caller = ann(side.reads, TIMED)
    answer = await side.reads.gateway.poll(KEY, cursor=at, start=False, turn="t1", wait=20, caller=caller)
    assert caller.expires_at
    assert side.reads.clock() < caller.expires_at
    assert answer == {"events": [], "cursor": str(at), "more": True}


async def test_nothing_is_sent_once_a_token_has_ended_unseen(side: Side) -> None:
    """While the process stood, for one: the next word is what wakes the stream."""
    client = await side.begin(TIMED)
    await client.until("turn.started")
    turn = await side.puppet.turn()
    side.reads.clock.advance(TIMED / 1000)
    await turn.text("late ")
    assert closed(await client.end())["reason"] == "auth"
    assert "text.delta" not in client.kinds


async def test_a_long_poll_brings_nothing_once_its_token_has_ended_unseen(rig: Rig) -> None:
    side = Side(rig, "here")
    await side.owner.start()
    at, feed = (await side.owner.shown("turn.started")).cursor, side.owner.live().writer.feed
    turn, caller = await side.puppet.turn(), ann(side.owner, TIMED)
    asking = side.owner.gateway.poll(KEY, cursor=at, start=False, turn="t1", wait=20, caller=caller)
    asked = asyncio.ensure_future(asking)
    await eventually(lambda: bool(feed._waiting))
    side.owner.clock.advance(TIMED / 1000)
    await turn.text("late ")
    with pytest.raises(Unauthorized):
        await asked


async def test_a_client_that_leaves_leaves_nothing_behind(side: Side) -> None:
    client = await side.begin()
    await client.until("auth.expiring")
    document = (KEY, f"stream.{client.id}", side.reads.clock())
    assert await side.other.journal.private(*document)
    await client.leave()
    async with asyncio.timeout(PATIENCE):
        while await side.other.journal.private(*document):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


class Told:
    """A verifier for which nobody stands who is in `fallen`."""

    def __init__(self) -> None:
        self.fallen: set[str] = set()

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        raise NotImplementedError

    async def stands(self, principal: Principal) -> bool:
        return principal.uid not in self.fallen


async def test_a_caller_that_stands_no_more_loses_its_streams_and_its_turn_goes_on(rig: Rig) -> None:
    told, puppet = Told(), Puppet()
    instance = rig.instance(puppet, verifier=told, auth_check=0.1)
    await instance.start()
    clients = [await instance.follow(start=True, caller=ann(instance, HOUR)) for _ in range(3)]
    await clients[0].pinged()
    assert not any("stream.closing" in client.kinds for client in clients)
    told.fallen.add("ann")
    for client in clients:
        assert closed(await client.end()) == {"reason": "auth", "retry_ms": 0}
    assert KEY in instance.engine.live


async def test_a_caller_that_stands_no_more_is_told_nothing_by_the_long_poll_either(rig: Rig) -> None:
    puppet, told = Puppet(), Told()
    owner, other = (rig.instance(puppet, verifier=verifier, auth_check=60) for verifier in (Told(), told))
    await owner.start()
    told.fallen.add("ann")
    at = (await owner.shown("turn.started")).cursor
    for wait in (0.2, 0.0):
        polls = [
            one.gateway.poll(KEY, cursor=at, start=False, turn="t1", wait=wait, caller=ann(one, HOUR))
            for one in (owner, other)
        ]
        assert await polls[0]
        with pytest.raises(Unauthorized):
            await polls[1]


async def test_an_instance_that_closes_asks_about_nobody_any_more(rig: Rig) -> None:
    instance = rig.instance(say, auth_check=60)
    await instance.play()
    before = asyncio.all_tasks()
    client = await instance.follow(turn=None, start=True, caller=ann(instance, HOUR))
    await client.until("turn.completed")
    await client.leave()
    instance.gateway.close()
    await eventually(lambda: asyncio.all_tasks() <= before)
