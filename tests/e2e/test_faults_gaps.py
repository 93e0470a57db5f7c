"""No event is missing, wherever a stream is cut and however slowly it is read; or a snapshot says what is."""

from __future__ import annotations

import asyncio
import random
from itertools import cycle, pairwise

import httpx

from e2e.duo import Duo, exactly, on_both_faces, position
from e2e.following import journaled, seq
from harness import Answer, TcpProxy
from legato import sse
from legato.client import LegatoClient
from legato.sse import Message

QUIET = "\n".join("/say 2\n/sleep 0.7" for _ in range(5))


def words(count: int) -> str:
    return "".join(f"w{number} " for number in range(1, count + 1))


async def up_to_ping(answer: Answer) -> list[Message]:
    """The frames before the first ping, or all of them."""
    frames = asyncio.create_task(answer.rest())
    ended: set[asyncio.Task[list[Message]]] = set()
    while not ended and sse.PING not in answer.raw:
        ended, _ = await asyncio.wait([frames], timeout=0.005)
    frames.cancel()
    await asyncio.wait([frames])
    return answer.messages


@on_both_faces
async def test_a_cut_right_after_every_ping_loses_nothing(duo: Duo, session: str) -> None:
    async with duo.a.caller().start(session, QUIET, "t") as answer:
        told = list(await up_to_ping(answer))
    for pings, server in enumerate(cycle((duo.b, duo.a)), 1):  # noqa: B007
        if told[-1].event == "turn.completed":
            break
        async with server.caller().events(session, told[-1].id, turn="t") as answer:
            told += await up_to_ping(answer)
    assert pings > 3
    assert journaled(told) == await duo.replay(session, "t")


async def test_a_cut_right_after_a_snapshot_loses_nothing(duo: Duo, session: str) -> None:
    resumed: list[tuple[int, asyncio.Task[Answer]]] = []
    async with duo.a.caller().start(session, "/say 40 40", "t") as writing:
        for k, server in zip(range(3, 40, 6), cycle((duo.b, duo.a)), strict=False):
            await writing.until(lambda message: seq(message.data) == k)  # noqa: B023
            async with server.caller().events(session, turn="t") as cut:
                at = position(await cut.until("snapshot"), 0)
            resumed.append((at, asyncio.create_task(duo.rest(server, session, cut.cursor, turn="t"))))
        await writing.rest()
    for at, rest in resumed:
        exactly(await rest, at, journaled(writing.messages))
        assert "snapshot" not in [message.event for message in (await rest).messages]


async def test_a_stream_that_closes_at_its_deadline_is_resumed_without_a_gap(duo: Duo, session: str) -> None:
    told: list[Message] = []
    async with duo.place.server("deadline", LEGATO_DEADLINE="0.4", LEGATO_PING="0.3") as brief:
        await duo.a.caller().begin(session, "/say 80 40", "t")
        while not told or told[-1].event != "turn.completed":
            cursor = next((message.id for message in reversed(told) if message.id), None)
            origin = {} if cursor else {"from": "start"}
            answer = await duo.rest(brief, session, cursor, turn="t", **origin)
            assert answer.messages[-1].event in ("stream.closing", "turn.completed")
            told += answer.messages
    assert [message.event for message in told].count("stream.closing") >= 2
    assert journaled(told) == await duo.replay(session, "t")


@on_both_faces
async def test_five_hundred_who_attach_while_it_is_written_nonstop_miss_nothing(duo: Duo, session: str) -> None:
    chance, room = random.Random(5), asyncio.Semaphore(300)

    async def follower() -> None:
        await asyncio.sleep(chance.uniform(0, 3.5))
        async with room:
            answer = await duo.rest(chance.choice((duo.a, duo.b)), session, turn="t")
        numbers = [position(answer.messages, 0), *map(seq, journaled(answer.messages))]
        assert all(after == before + 1 for before, after in pairwise(numbers))
        assert numbers[-1] == 202

    async with duo.a.caller().start(session, "/say 200 50", "t") as writing:
        await writing.until("text.delta")
        await asyncio.gather(*(follower() for _ in range(500)), writing.rest(60))
    assert writing.text == words(200)


@on_both_faces
async def test_a_reader_that_stalls_while_megabytes_go_by_reads_on_without_a_gap(duo: Duo, session: str) -> None:
    """The sockets take some of them, the feed of this instance next to nothing: the rest comes from the journal."""
    script = "\n".join('/say 20\n/tool big {"bytes": 900000}\n/sleep 0.1' for _ in range(12))
    async with duo.place.server("stall", LEGATO_FEED_BYTES="4096") as server:
        await server.caller().begin(session, script, "t")
        async with server.caller().events(session, turn="t", **{"from": "start"}) as stalled:
            await stalled.until("text.delta")
            await duo.rest(duo.b, session, turn="t")
            await stalled.rest(60)
    exactly(stalled, 0, await duo.replay(session, "t"))
    assert stalled.ended


async def test_clients_cut_off_every_two_seconds_tell_a_long_turn_whole(duo: Duo, session: str) -> None:
    async with TcpProxy(duo.a.port) as hop:

        async def cut() -> None:
            for server in cycle((duo.b, duo.a)):
                await asyncio.sleep(2)
                hop.upstream = server.port
                hop.cut()

        async def client(number: int) -> list[int]:
            http = httpx.AsyncClient(trust_env=False, verify=False)
            async with http, LegatoClient(hop.url, "dev:ann", http=http) as client:
                async with client.turn(f"{session}-{number}", "/say 140 20", turn="t") as run:
                    told = [update.event.seq async for update in run if update.event]
                assert (run.status, run.turn and run.turn.output) == ("completed", words(140))
                return told

        cutting = asyncio.create_task(cut())
        told = await asyncio.gather(*(client(number) for number in range(5)))
        cutting.cancel()
    assert told == [list(range(1, 143))] * 5
    assert hop.accepted > 2 * 5
