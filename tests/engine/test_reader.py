"""The cursor rule: resuming is exact, or a snapshot says that it is not. Over a journal whose every event is known."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce as fold

import pytest

from engine.rig import KEY, Client, Gate, Instance, Puppet, Rig, eventually, nth
from legato.agents import Turn
from legato.errors import SequenceGap
from legato.events import Cursor, Event, Payload, Record, TextDelta, TurnCompleted, TurnStarted
from legato.gateway import NONSENSE
from legato.journal import ActiveTurn, Commit, Head, Lease, Segment, TurnRecord
from legato.turn import SessionState, reduce

DAY = 86_400_000
HOUR = 3_600_000


def line(seq: int, epoch: int, turn: str, payload: Payload) -> Record:
    return Event(seq, epoch, turn, 1_796_050_000_000, payload).encode()


def word(seq: int, epoch: int, turn: str) -> Record:
    return line(seq, epoch, turn, TextDelta(step=1, text=f"w{seq} "))


class Prepared:
    """Turn t1 (events 1 to 6, epoch 1, ended) and turn t2 (7 to 12, epoch 2, streaming), three events a segment."""

    def __init__(self, instance: Instance, *, left: int = HOUR) -> None:
        """`left` is how long t2's lease still lasts, in ms."""
        self.instance = instance
        self._now = instance.clock()
        self._lease_until = self._now + left

    def segment(self, *records: Record) -> Segment:
        return Segment.of(records, f"c{records[0].seq}", self._now + DAY)

    async def write(self) -> None:
        journal, now, later = self.instance.journal, self._now, self._now + 30 * DAY
        begun = TurnRecord("t1", "streaming", "agent", "in", 1, now, later)
        head = Head(1, 0, ActiveTurn("t1", "streaming"), now, now, later)
        lease = Lease(1, "x", "t1", 0, now + HOUR, "c1")
        first = [line(1, 1, "t1", TurnStarted(input="in", agent="agent")), word(2, 1, "t1"), word(3, 1, "t1")]
        stored = await journal.commit(KEY, Commit(self.segment(*first), head, lease, None, begun, new_turn=True))
        assert stored.head
        assert stored.lease
        ended = replace(begun, status="completed", last=6, ended_at=now, output="w2 w3 w4 w5 ")
        last = [word(4, 1, "t1"), word(5, 1, "t1"), line(6, 1, "t1", TurnCompleted(text="w2 w3 w4 w5 "))]
        rest = Commit(
            self.segment(*last),
            replace(stored.head, seq=6, turn=None),
            replace(stored.lease, expires_at=0, commit="c4"),
            None,
            ended,
        )
        stored = await journal.commit(KEY, rest)
        await self._second(stored)

    async def _second(self, stored: Commit) -> None:
        assert stored.head
        assert stored.lease
        journal, now = self.instance.journal, self._now
        begun = TurnRecord("t2", "streaming", "agent", "in", 7, now, now + 30 * DAY)
        head = replace(stored.head, epoch=2, turn=ActiveTurn("t2", "streaming"))
        lease = replace(stored.lease, epoch=2, turn="t2", expires_at=self._lease_until, commit="c7")
        first = [line(7, 2, "t2", TurnStarted(input="in", agent="agent")), word(8, 2, "t2"), word(9, 2, "t2")]
        await journal.commit(KEY, Commit(self.segment(*first), head, lease, None, begun, new_turn=True))
        await journal.append(KEY, self.segment(word(10, 2, "t2"), word(11, 2, "t2"), word(12, 2, "t2")))


@pytest.fixture
async def instance(rig: Rig) -> Instance:
    """Reads the prepared journal; runs no turn of it."""
    made = rig.instance(Puppet())
    await Prepared(made).write()
    return made


async def first_frame(client: Client) -> tuple[str, str | None]:
    """Its event and its id."""
    await client.sees(lambda: bool(client.messages))
    await client.leave()
    return client.messages[0].event, client.messages[0].id


EXACT = [
    (Cursor(1, 1), None, "1-2"),
    (Cursor(1, 2), None, "1-3"),
    (Cursor(1, 3), None, "1-4"),
    (Cursor(1, 5), None, "1-6"),
    (Cursor(1, 6), None, "2-7"),
    (Cursor(2, 7), None, "2-8"),
    (Cursor(2, 11), None, "2-12"),
    (Cursor(1, 3), "t1", "1-4"),
    (Cursor(1, 6), "t2", "2-7"),
    (Cursor(2, 9), "t2", "2-10"),
]


@pytest.mark.parametrize(("cursor", "turn", "following"), EXACT)
async def test_a_cursor_that_exists_is_followed_by_the_next_event(
    instance: Instance, cursor: Cursor, turn: str | None, following: str
) -> None:
    _, found = await first_frame(await instance.follow(cursor, turn))
    assert found == following


INEXACT = [
    (None, None),
    (NONSENSE, None),
    (Cursor(2, 3), None),
    (Cursor(1, 7), None),
    (Cursor(1, 9), None),
    (Cursor(3, 12), None),
    (Cursor(2, 0), None),
    (Cursor(1, 13), None),
    (Cursor(3, 13), None),
    (Cursor(9, 999_999), None),
    (Cursor(1, 2), "t2"),
    (Cursor(2, 2), "t2"),
    (Cursor(1, 8), "t2"),
    (Cursor(1, 900), "t1"),
    (Cursor(2, 6), "t1"),
    (NONSENSE, "t1"),
]


@pytest.mark.parametrize(("cursor", "turn"), INEXACT)
async def test_any_other_cursor_is_answered_by_a_snapshot(
    instance: Instance, cursor: Cursor | None, turn: str | None
) -> None:
    """Another epoch, the future, nonsense, another turn's past: the snapshot's own cursor is where it goes on."""
    assert await first_frame(await instance.follow(cursor, turn)) == ("snapshot", "2-12")


@pytest.mark.parametrize(("cursor", "turn"), [(Cursor(1, 6), "t1"), (Cursor(2, 7), "t1"), (Cursor(2, 12), "t1")])
async def test_a_turn_that_ended_at_or_before_an_existing_cursor_needs_no_stream(
    instance: Instance, cursor: Cursor, turn: str
) -> None:
    assert await instance.gateway.follow(KEY, cursor=cursor, start=False, turn=turn) is None
    assert await instance.gateway.poll(KEY, cursor=cursor, start=False, turn=turn, wait=1) is None


async def test_a_turns_stream_shows_nothing_of_another_turn(instance: Instance) -> None:
    """t1's ends with its terminal event; t2's begins with its first."""
    first = await instance.follow(turn="t1", start=True)
    await first.end()
    assert [message.id for message in first.messages] == [f"1-{seq}" for seq in range(1, 7)]
    second = await instance.follow(turn="t2", start=True)
    await second.until("text.delta", 5)
    assert [message.id for message in second.messages] == [f"2-{seq}" for seq in range(7, 13)]
    await second.leave()


async def test_from_the_start_there_is_everything(instance: Instance) -> None:
    client = await instance.follow(turn=None, start=True)
    await client.until("text.delta", 9)
    assert [(message.id or "").split("-")[1] for message in client.messages] == [str(seq) for seq in range(1, 13)]
    await client.leave()


async def test_a_cursor_ahead_of_the_journal_waits_for_its_living_owner(instance: Instance) -> None:
    """The client saw events that the journal is about to get: it is sent what follows them, and no snapshot."""
    client = await instance.follow(Cursor(2, 14), None)
    await client.pinged()
    assert client.messages == []
    prepared = Prepared(instance)
    await instance.journal.append(KEY, prepared.segment(word(13, 2, "t2")))
    await client.pinged(2)
    assert client.messages == []
    await instance.journal.append(KEY, prepared.segment(word(14, 2, "t2"), word(15, 2, "t2")))
    assert (await client.until("text.delta")).id == "2-15"
    await client.leave()


async def test_a_cursor_that_stays_ahead_of_a_living_owner_is_given_up_after_a_while(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner may have lost what it had shown: then a snapshot says so."""
    monkeypatch.setattr("legato.follow.AHEAD_SECONDS", 0.3)
    assert await first_frame(await instance.follow(Cursor(2, 14), None)) == ("snapshot", "2-12")


async def test_a_cursor_that_the_journal_reaches_between_two_looks_is_exact(instance: Instance) -> None:
    """The event is not there when the journal is read, and is when its head is looked at."""
    gate = Gate()
    instance.journal.rule = nth(gate, 2, "standing")
    client = await instance.follow(Cursor(2, 13), None)
    await gate.stood()
    await instance.journal.append(KEY, Prepared(instance).segment(word(13, 2, "t2"), word(14, 2, "t2")))
    gate.open()
    assert await first_frame(client) == ("text.delta", "2-14")


async def test_a_cursor_ahead_of_an_owner_that_is_gone_is_answered_by_a_snapshot(rig: Rig) -> None:
    """At once, and whoever reads takes the turn over."""
    instance = rig.instance(silent)
    await Prepared(instance, left=-1).write()
    client = await instance.follow(Cursor(2, 14), "t2")
    await client.end()
    assert client.kinds == ["snapshot", "turn.resumed", "step.rewound", "turn.completed"]
    assert [message.id for message in client.messages] == ["2-12", "3-13", "3-14", "3-15"]


async def test_expired_segments_are_not_sent_though_they_are_still_there(instance: Instance) -> None:
    """A cursor into them, and a start before them, are answered by a snapshot."""
    instance.clock.advance(2 * DAY / 1000)
    for cursor, start in ((Cursor(1, 3), False), (Cursor(1, 6), False), (None, True)):
        client = await instance.follow(cursor, None, start=start)
        assert (await first_frame(client))[0] == "snapshot"


async def test_a_hole_in_the_middle_is_answered_by_a_snapshot(rig: Rig) -> None:
    """Events up to the hole are sent, none behind it without the snapshot between them."""
    instance = rig.instance(Puppet())
    await Prepared(instance).write()
    prepared = Prepared(instance)
    await instance.journal.append(KEY, prepared.segment(word(16, 2, "t2"), word(17, 2, "t2")))
    client = await instance.follow(Cursor(2, 11), None)
    await client.until("snapshot")
    assert [message.id for message in client.messages][:1] == ["2-12"]
    assert client.kinds == ["text.delta", "snapshot"]
    await client.leave()


async def test_a_hole_that_opens_behind_a_waiting_reader_is_answered_at_once(instance: Instance) -> None:
    """Not only when it next looks after the session."""
    client = await instance.follow(Cursor(2, 12), None)
    await client.pinged()
    await instance.journal.append(KEY, Prepared(instance).segment(word(16, 2, "t2"), word(17, 2, "t2")))
    await client.until("snapshot")
    assert client.kinds == ["snapshot"]
    await client.leave()


async def test_a_session_stream_lives_on_through_later_turns(rig: Rig) -> None:
    """Followed here and elsewhere, it shows one turn after the other."""
    instance, other = rig.instance(two_words), rig.instance(two_words)
    await instance.play()
    clients = [await each.follow(turn=None, start=True) for each in (instance, other)]
    for turn in ("t2", "t3"):
        await instance.play(turn=turn)
    for client in clients:
        await client.until("turn.completed", 3)
        await client.leave()
        assert client.kinds == ["turn.started", "text.delta", "text.delta", "turn.completed"] * 3


async def silent(_: Turn) -> None:
    """Has nothing to say."""


async def two_words(turn: Turn) -> None:
    turn.text("one ")
    turn.text("two")


async def test_a_deleted_session_ends_its_streams(instance: Instance, rig: Rig) -> None:
    """Of a reader that has seen everything, and of one that comes from a snapshot."""
    other = rig.instance(Puppet())
    clients = [await other.follow(Cursor(2, 12), None), await other.follow(None, None)]
    await clients[1].until("snapshot")
    await instance.gateway.delete(KEY)
    other.clock.advance(HOUR)
    for client in clients:
        await client.end()


async def test_a_reader_that_has_everything_reads_nothing_while_nothing_is_new(instance: Instance) -> None:
    """However often it pings."""
    client = await instance.follow(Cursor(2, 12), None)
    await client.pinged(2)
    instance.journal.calls.clear()
    await client.pinged(8)
    assert set(instance.journal.calls) == {"wait"}
    await client.leave()


async def test_when_a_lease_should_have_run_out_a_reader_looks_at_it_alone(rig: Rig) -> None:
    """Its owner has renewed it meanwhile, so there is nothing else to see."""
    instance = rig.instance(Puppet())
    await Prepared(instance, left=1000).write()
    client = await instance.follow(Cursor(2, 12), None)
    await client.pinged(2)
    held = await instance.journal.lease(KEY)
    assert held
    await instance.journal.renew(KEY, replace(held, expires_at=held.expires_at + HOUR, commit="r"))
    instance.journal.calls.clear()
    await eventually(lambda: "lease" in instance.journal.calls)
    await client.pinged(8)
    assert [call for call in instance.journal.calls if call != "wait"] == ["lease"]
    await client.leave()


async def test_who_holds_text_that_was_lost_with_its_owner_sees_a_gap_at_the_next_turn_and_is_given_a_snapshot(
    rig: Rig,
) -> None:
    """Its numbers were given again meanwhile, so that the next turn begins right behind them."""
    puppet = Puppet()
    owner, other = rig.instance(puppet), rig.instance(silent)
    owner.journal.rule = lambda called: "refuse" if called in ("append", "renew") else None
    await owner.start()
    client = await owner.follow(start=True)
    for word in ("shown ", "lost"):
        (await puppet.turn()).text(word)
    await client.until("text.delta", 2)
    state = fold(reduce, (Record.of(data).decode() for data in client.data), SessionState("s1"))
    other.clock.advance(60)
    await other.engine.take_over(KEY)
    await other.ended()
    await other.start(turn="t2")
    next_turn = [event.decode() for event in await other.stored() if event.turn == "t2"]
    assert next_turn[0].seq == state.cursor.seq + 1
    with pytest.raises(SequenceGap):
        reduce(state, next_turn[0])
    await (await other.follow(state.cursor, "t2")).until("snapshot")
