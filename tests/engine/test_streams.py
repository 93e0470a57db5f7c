"""Streams over a turn that runs here, runs elsewhere, or has ended: the same events, in order, whatever happens."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest

from engine.rig import KEY, PATIENCE, Client, Gate, Instance, Puppet, Rig, eventually
from legato import sse, tool
from legato.agents import Turn
from legato.errors import JournalRejected, JournalUnavailable
from legato.events import TERMINAL, Cursor
from legato.follow import Batch
from legato.journal import SessionKey
from legato.stream import Looks


@tool(effect="read")
async def look() -> str:
    return "seen"


async def canonical(turn: Turn) -> None:
    """Text, a tool, text: some twenty events, at a pace that spreads them over several segments."""
    for part in range(3):
        for number in range(4):
            await turn.text(f"w{part}{number} ")
            await asyncio.sleep(0.004)
        if part < 2:
            await turn.call(look)


async def silent(_: Turn) -> None:
    """Has nothing to say."""


EVENTS = 18


def cursor(message: sse.Message) -> Cursor:
    found = Cursor.parse(message.id or "")
    assert found
    return found


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_stream_cut_after_any_event_of_a_running_turn_is_resumed_exactly(rig: Rig, where: str) -> None:
    """prefix(k) + resume(k) is what the journal has, byte for byte in its data."""
    owner = rig.instance(canonical)
    resumes = owner if where == "here" else rig.instance(canonical)

    async def cut(k: int) -> list[str]:
        key = SessionKey("ann", f"s{k}")
        await owner.start(key=key)
        first = await owner.follow(start=True, key=key)
        await first.sees(lambda: len(first.messages) >= k)
        await first.leave()
        seen = first.messages[:k]
        rest = await resumes.follow(cursor(seen[-1]), key=key)
        return [message.data for message in (*seen, *await rest.end())]

    given = await asyncio.gather(*(cut(k) for k in range(1, EVENTS)))
    for k, data in enumerate(given, 1):
        assert data == [record.data for record in await owner.stored(SessionKey("ann", f"s{k}"))]
        assert len(data) == EVENTS


async def test_an_ended_turn_is_resumed_exactly_after_any_event(rig: Rig) -> None:
    """On either instance; behind its last event there is nothing to stream."""
    owner, other = rig.instance(canonical), rig.instance(canonical)
    records = await owner.play()
    assert len(records) == EVENTS
    for instance in (owner, other):
        for k in range(1, EVENTS):
            rest = await (await instance.follow(records[k - 1].cursor)).end()
            assert [message.data for message in rest] == [record.data for record in records[k:]]
        assert await instance.gateway.follow(KEY, cursor=records[-1].cursor, start=False, turn="t1") is None


async def test_two_readers_with_the_same_cursor_are_sent_the_same_bytes(rig: Rig) -> None:
    owner, other = rig.instance(canonical), rig.instance(canonical)
    await owner.start()
    at = (await owner.shown("text.delta", 3)).cursor
    clients = [await instance.follow(at) for instance in (owner, owner, other, other)]
    for client in clients:
        await client.end()
    sent = {b"".join(chunk for chunk in client.chunks if chunk != sse.PING) for client in clients}
    assert len(sent) == 1
    assert clients[0].kinds[-1] == "turn.completed"


async def test_attaching_around_completion_always_ends_with_the_terminal_event(rig: Rig) -> None:
    """300 readers, each a little later than the one before, at the owner and elsewhere."""
    leaving: dict[str, asyncio.Event] = {}

    async def agent(turn: Turn) -> None:
        await leaving[turn.session].wait()

    instances = rig.instance(agent), rig.instance(agent)

    async def attach(index: int, key: SessionKey) -> str:
        for _ in range(index % 60):
            await asyncio.sleep(0)
        client = await instances[index % 2].follow(start=index % 3 > 0, key=key)
        return (await client.end())[-1].event

    lasts = []
    for turn in range(15):
        key = SessionKey("ann", f"s{turn}")
        leaving[key.session] = asyncio.Event()
        await instances[0].start(key=key)
        asyncio.get_running_loop().call_later(0.001 * turn, leaving[key.session].set)
        lasts += await asyncio.gather(*(attach(index, key) for index in range(20)))
    assert set(lasts) <= TERMINAL | {"snapshot"}
    assert lasts.count("turn.completed") >= 200


@pytest.mark.parametrize("ended", [False, True])
async def test_a_reader_that_falls_out_of_the_feed_reads_the_journal(rig: Rig, ended: bool) -> None:
    """It stalls while far more than the buffer holds is said; then it has every event."""
    leaving = asyncio.Event()

    async def agent(turn: Turn) -> None:
        for number in range(100):
            await turn.text(f"w{number} ")
            if number % 10 == 0:
                await turn.step("durable", nothing)
        await leaving.wait()

    async def nothing() -> None: ...

    instance = rig.instance(agent, feed_bytes=2000)
    await instance.start()
    stream = await instance.gateway.follow(KEY, cursor=None, start=True, turn="t1")
    assert stream
    decoder, seqs = sse.Decoder(), []
    async with asyncio.timeout(PATIENCE), aclosing(stream.frames()) as frames:
        await anext(frames)
        if ended:
            leaving.set()
            await instance.ended()
        else:
            feed = instance.live().writer.feed
            await eventually(lambda: feed.last == 101)
        leaving.set()
        async for chunk in frames:
            seqs += [cursor(message).seq for message in decoder.feed(chunk)]
    assert seqs == list(range(1, 103))


async def test_the_feed_is_bounded_once_the_journal_has_its_events(rig: Rig) -> None:
    puppet = Puppet()
    instance = rig.instance(puppet, feed_bytes=2000)
    await instance.start()
    turn = await puppet.turn()
    for _ in range(200):
        await turn.text("word " * 20)
    live = instance.live()
    await live.writer.flush()
    feed = live.writer.feed
    assert not feed.holds(feed.start)
    assert feed.holds(feed.last - 5)
    assert not feed.holds(feed.last - 25)


@pytest.mark.parametrize("fault", ["hang", "refuse"])
async def test_a_stream_pings_while_the_journal_does_not_answer_and_then_goes_on(rig: Rig, fault: str) -> None:
    """Of a whole turn and of a session: whether the calls hang or fail, nothing is missing in the end."""
    owner, other = rig.instance(canonical), rig.instance(canonical)
    await owner.play()
    streams = [
        other.gateway.attach(KEY, await other.start()),
        await other.gateway.follow(KEY, cursor=Cursor(1, 3), start=False, turn=None),
    ]
    gate = Gate()
    other.journal.rule = lambda name: gate if fault == "hang" else "refuse"
    whole, rest = (Client(stream) for stream in streams if stream)
    for client in (whole, rest):
        await client.pinged(3)
        assert client.messages == []
    other.journal.heal()
    gate.open()
    await rest.until("turn.completed")
    await rest.leave()
    assert (len(await whole.end()), len(rest.messages)) == (EVENTS, EVENTS - 3)


async def test_a_look_that_fails_once_its_client_has_left_is_no_unseen_failure() -> None:
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))

    async def fails() -> Batch | None:
        raise JournalUnavailable("away")

    await asyncio.wait([Looks().start(fails())])
    gc.collect()
    assert unseen == []


async def test_a_stream_closes_at_its_deadline(rig: Rig) -> None:
    instance = rig.instance(Puppet(), deadline=0.3)
    await instance.start()
    last = (await (await instance.follow(start=True)).end())[-1]
    assert (last.event, last.id) == ("stream.closing", None)
    assert '"reason":"deadline"' in last.data


async def test_a_stream_closes_at_its_deadline_though_there_is_always_more_to_send(rig: Rig) -> None:
    puppet = Puppet()
    instance = rig.instance(puppet, deadline=0.001)
    await instance.start()
    turn, sent = await puppet.turn(), []
    stream = await instance.gateway.follow(KEY, cursor=None, start=True, turn="t1")
    assert stream
    async with aclosing(stream.frames()) as frames:
        async for chunk in frames:
            sent.append(chunk)
            turn.text("more")
            await asyncio.sleep(0.002)
            assert len(sent) < 5
    assert b"stream.closing" in sent[-1]


class Polling:
    """A client of the long poll, and what it was told."""

    def __init__(self, instance: Instance, at: Cursor | None = None, *, start: bool = False) -> None:
        self.instance, self.at, self.start = instance, at, start
        self.seqs: list[int] = []

    async def once(self, wait: float = 5, turn: str | None = "t1") -> dict[str, object]:
        answer = await self.instance.gateway.poll(KEY, cursor=self.at, start=self.start, turn=turn, wait=wait)
        assert answer
        self.seqs += [event["seq"] for event in answer["events"]]
        self.at, self.start = Cursor.parse(answer["cursor"]), False
        assert self.at
        return answer


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_the_long_poll_gives_every_event_once_and_says_when_there_is_no_more(rig: Rig, where: str) -> None:
    owner = rig.instance(canonical)
    client = Polling(owner if where == "here" else rig.instance(canonical), start=True)
    await owner.start()
    while (await client.once())["more"]:
        pass
    assert client.seqs == list(range(1, EVENTS + 1))


async def test_the_long_poll_without_a_cursor_is_a_snapshot(rig: Rig) -> None:
    instance = rig.instance(canonical)
    await instance.play()
    answer = await Polling(instance).once(turn=None)
    assert (answer["cursor"], answer["events"], answer["more"]) == (f"1-{EVENTS}", [], True)
    assert isinstance(answer["snapshot"], dict)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_long_poll_without_news_is_answered_after_its_wait(rig: Rig, where: str) -> None:
    """Its cursor is the one it came with."""
    owner = rig.instance(Puppet())
    await owner.start()
    answer = await Polling(owner if where == "here" else rig.instance(Puppet()), Cursor(1, 1)).once(wait=0.05)
    assert answer == {"events": [], "cursor": "1-1", "more": True}


async def test_a_long_poll_over_a_journal_that_hangs_is_refused_in_bounded_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.stream.ANSWER_SECONDS", 0.05)
    owner, other = rig.instance(Puppet()), rig.instance(Puppet())
    await owner.start()
    gate = other.journal.hold("read")
    with pytest.raises(JournalUnavailable):
        await Polling(other, Cursor(1, 1)).once(wait=0.05)
    gate.open()


async def test_a_long_poll_of_a_turn_whose_owner_lost_it_says_that_there_is_more(rig: Rig) -> None:
    """This instance lost the lease; the turn's end is found where it is now."""
    owner, other = rig.instance(Puppet(), lease=0.3), rig.instance(silent)
    await owner.start()
    client = Polling(owner, Cursor(1, 1))
    asking = asyncio.create_task(client.once())
    other.clock.advance(3600)
    await other.engine.take_over(KEY)
    assert (await asking)["more"] is True
    while (await client.once())["more"]:
        pass
    assert client.seqs == [2, 3]


@pytest.mark.parametrize("failure", [JournalRejected("the disk is full"), RuntimeError("nobody expected this")])
@pytest.mark.parametrize("turn", ["t1", None])
async def test_a_stream_that_cannot_be_gone_on_with_says_so_in_its_last_frame(
    rig: Rig, failure: Exception, turn: str | None
) -> None:
    """Its client comes back after a pause, as for a lease that went."""
    owner, other = rig.instance(Puppet()), rig.instance(silent)
    await owner.start()
    client = await other.follow(turn=turn, start=True)
    await client.until("turn.started")
    other.journal.fail(failure)
    owner.live().turn.text("more")
    messages = await client.end()
    assert client.kinds == ["turn.started", "stream.closing"]
    assert '"reason":"lease"' in messages[-1].data


async def test_the_stream_of_a_session_that_is_deleted_says_so_in_its_last_frame(rig: Rig) -> None:
    instance = rig.instance(silent)
    await instance.play()
    client = await instance.follow(turn=None, start=True)
    await client.until("turn.completed")
    await instance.gateway.delete(KEY)
    assert '"reason":"lease"' in (await client.end())[-1].data
