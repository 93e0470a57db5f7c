"""A turn stops when it is told to, wherever that is said; and for no other reason."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import httpx

from e2e.duo import Duo, exactly, on_both_faces
from e2e.following import journaled, seq
from harness import Caller, Server, TcpProxy
from legato.events import TERMINAL, Record


def transferred(duo: Duo, session: str) -> int:
    """How often `transfer` ran in the session."""
    ledger = duo.place.ledger.read_text().splitlines() if duo.place.ledger.exists() else []
    return sum(f'"{session}/' in line for line in ledger)


@on_both_faces
async def test_followers_killed_in_turn_take_nothing_from_the_others(duo: Duo, session: str) -> None:
    async with TcpProxy(duo.a.port, reset=True) as hop, TcpProxy(duo.a.port, reset=True) as other:
        await duo.b.caller().begin(session, "/say 60 20", "t")
        one, two, three = (Caller(url) for url in (hop.url, other.url, duo.a.url))
        async with (
            one.events(session, turn="t", **{"from": "start"}) as first,
            two.events(session, turn="t", **{"from": "start"}) as second,
            three.events(session, turn="t", **{"from": "start"}) as third,
        ):
            await asyncio.gather(*(follower.until("text.delta") for follower in (first, second, third)))
            hop.cut()
            await second.until(lambda message: seq(message.data) == 20)
            other.cut()
            await third.rest()
            await asyncio.gather(first.rest(), second.rest())
    whole = await duo.replay(session, "t")
    exactly(third, 0, whole)
    assert (first.broken, second.broken, first.ended, second.ended) == (True, True, False, False)


@on_both_faces
async def test_a_connection_dropped_during_a_tool_leaves_it_to_finish_once(duo: Duo, session: str) -> None:
    script = '/say 2\n/tool transfer {"amount": 3, "seconds": 0.5}\n/say 2'
    async with duo.a.caller().start(session, script, "t") as dropped:
        told = journaled(await dropped.until("tool.call"))
    rest = await duo.rest(duo.b, session, dropped.cursor, turn="t")
    kinds = [message.event for message in rest.messages]
    assert kinds[0] == "tool.result"
    assert kinds[-1] == "turn.completed"
    assert told + journaled(rest.messages) == await duo.replay(session, "t")
    assert transferred(duo, session) == 1


async def test_a_cancel_through_the_other_instance_freezes_all_counters(duo: Duo, session: str) -> None:
    """A call that was durable as the cancel came, and not begun, has no result."""
    script = "\n".join('/say 3 50\n/tool transfer {"amount": 1}' for _ in range(200))
    async with duo.a.caller().start(session, script, "t") as turn:
        await turn.until("tool.result")
        assert (await duo.b.caller().cancel(session, "t", "enough")).status_code == 202
        told = await turn.rest()
    ran, head = transferred(duo, session), turn.cursor
    assert told[-1].event == "turn.interrupted"
    assert 0 < ran == sum(message.event == "tool.result" for message in told) < 200
    await asyncio.sleep(1)
    assert transferred(duo, session) == ran
    for server in duo[:2]:
        assert (await server.caller().snapshot(session)).json()["cursor"] == head


class Race:
    """Turns one after the other, each cancelled about when it completes: later after one that the cancel had won,
    earlier after one that it had lost. `ahead` is negative where the cancel must be sent before its turn."""

    def __init__(self, duo: Duo, session: str) -> None:
        self._duo, self._session = duo, session
        self._chance = random.Random(session)
        self._ahead = 0.02

    async def run(self, turn: str) -> None:
        clock, server = asyncio.get_running_loop().time, self._chance.choice((self._duo.a,) * 4 + (self._duo.b,))
        began, cancel = clock(), asyncio.create_task(self._cancel(server, turn))
        await asyncio.sleep(-self._ahead)
        async with self._duo.a.caller().start(self._session, "/say 2\n/sleep 0.01", turn) as stream:
            told = await stream.rest(60)
        assert (await cancel).status_code in (200, 202)
        assert [message.event in TERMINAL for message in told] == [False] * (len(told) - 1) + [True]
        step = (clock() - began) / 8
        self._ahead += step if told[-1].event == "turn.interrupted" else -step

    async def _cancel(self, server: Server, turn: str) -> httpx.Response:
        await asyncio.sleep(self._ahead)
        return await server.caller().cancel(self._session, turn)


async def test_a_thousand_cancels_raced_with_completion_leave_one_terminal_event_each(duo: Duo, session: str) -> None:
    async def lane(name: str) -> Counter[str]:
        race = Race(duo, name)
        for number in range(50):
            await race.run(f"t{number}")
        return ends(await duo.session_events(name))

    told = sum(await asyncio.gather(*(lane(f"{session}-{number}") for number in range(20))), Counter())
    assert told.keys() == {"turn.completed", "turn.interrupted"}
    assert told.total() == 1000


def ends(events: list[str]) -> Counter[str]:
    """How the turns of a session ended, by type; each by exactly one event that nothing of it follows."""
    records = [Record.of(data) for data in events]
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    last = [record for record, after in zip(records, [*records[1:], None], strict=True) if _ends(record, after)]
    assert last == [record for record in records if record.type in TERMINAL]
    return Counter(record.type for record in last)


def _ends(record: Record, after: Record | None) -> bool:
    return after is None or after.turn != record.turn


async def test_a_cancel_within_5_ms_of_its_post_stops_the_turn(duo: Duo, session: str) -> None:
    chance = random.Random(11)

    async def one(number: int) -> None:
        name = f"{session}-{number}"
        begun = asyncio.create_task(duo.a.caller().begin(name, "/say 2000 20", "t"))
        await asyncio.sleep(chance.uniform(0, 0.005))
        cancelled = await (duo.a, duo.b)[number % 2].caller().cancel(name, "t")
        assert (cancelled.status_code, (await begun).status_code) == (202, 202)
        async with duo.b.caller().events(name, turn="t", **{"from": "start"}) as answer:
            await answer.rest(60)
        assert answer.messages[-1].event == "turn.interrupted"

    for batch in range(4):
        await asyncio.gather(*(one(batch * 25 + number) for number in range(25)))
