"""Whoever asks gets an end: of the turn, or a definite answer that there is none."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import statistics
import struct

import httpx
import pytest

from e2e.duo import Duo, exactly, on_both_faces
from e2e.following import journaled
from harness import Answer, Server, TcpProxy
from legato.client import LegatoClient
from legato.events import TERMINAL

START = {"from": "start"}
LANES, TURNS, READERS = 10, 5, 20


def told_the_end(answer: Answer) -> bool:
    """The terminal event came, or a snapshot of a session at rest, and then the stream ended by itself."""
    last = answer.messages[-1]
    at_rest = last.event == "snapshot" and json.loads(last.data)["active"] is None
    return not answer.broken and (last.event in TERMINAL or at_rest)


class Lane:
    """Turns one after the other, whose readers come around the moment of completion, as turns before tell it."""

    def __init__(self, duo: Duo, session: str) -> None:
        self._duo, self._session = duo, session
        self._chance = random.Random(session)
        self._took = [0.02]

    async def turn(self, name: str) -> None:
        clock = asyncio.get_running_loop().time
        async with self._duo.a.caller().start(self._session, "/say 1\n/sleep 0.05", name) as seen:
            await seen.until("text.delta")
            word, aim = clock(), statistics.median(self._took[-5:])
            readers = [asyncio.create_task(self._reader(seen, name, aim)) for _ in range(READERS)]
            await asyncio.sleep(0)
            await seen.rest()
            self._took.append(clock() - word)
        assert all(told_the_end(answer) for answer in await asyncio.gather(*readers))

    async def _reader(self, seen: Answer, turn: str, aim: float) -> Answer:
        cursor = self._chance.choice((seen.cursor, seen.messages[0].id, None))
        server = self._chance.choice(self._duo[:2])
        await asyncio.sleep(aim + self._chance.uniform(-0.005, 0.005))
        return await self._duo.rest(server, self._session, cursor, turn=turn)


@on_both_faces
async def test_a_thousand_who_attach_within_5_ms_of_completion_are_told_the_end(duo: Duo, session: str) -> None:
    async def lane(number: int) -> None:
        turns = Lane(duo, f"{session}-{number}")
        for turn in range(TURNS):
            await turns.turn(f"t{turn}")

    await asyncio.gather(*(lane(number) for number in range(LANES)))


async def test_who_attaches_after_the_end_gets_the_whole_answer_and_the_end_of_the_stream(
    duo: Duo, session: str
) -> None:
    async with duo.a.caller().start(session, "/say 10", "t") as first:
        whole = journaled(await first.rest())
    for server in duo[:2]:
        exactly(await duo.rest(server, session, turn="t", **START), 0, whole)
        async with server.caller().start(session, "/say 10", "t") as again:
            await again.rest()
        exactly(again, 0, whole)
        bare = await duo.rest(server, session, turn="t")
        assert told_the_end(bare)
        assert json.loads(bare.messages[-1].data)["turns"][-1]["output"] == first.text


async def test_a_finished_turn_costs_its_client_no_further_request(duo: Duo, session: str) -> None:
    http = httpx.AsyncClient(trust_env=False, verify=False)
    async with TcpProxy(duo.a.port) as hop, http, LegatoClient(hop.url, "dev:ann", http=http) as client:
        async with client.turn(session, "/say 3", turn="t") as run:
            updates = [update async for update in run]
        assert (run.status, updates[-1].state.active) == ("completed", None)
        async with client.resume(session, "t") as again:
            assert [update.status async for update in again][-1] == "completed"
        assert hop.accepted <= 2


@pytest.mark.parametrize("path", ["", "/events", "/events?turn=t", "/events?from=start", "/events?wait=20"])
async def test_a_session_with_no_turn_is_told_so_at_once(duo: Duo, session: str, path: str) -> None:
    async with asyncio.timeout(15):
        answer = await duo.a.caller().request("GET", f"/v1/sessions/{session}{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def abort_at_first_byte(server: Server, session: str, reset: bool) -> None:
    """Starts a turn and is gone as soon as the answer begins, by FIN or RST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps({"turn": "t", "input": "/say 5 100"})
    head = f"POST /v1/sessions/{session}/turns HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer dev:ann\r\n"
    head += f"Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    assert await reader.read(1) == b"H"
    if reset:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@on_both_faces
async def test_two_hundred_turns_whose_posts_are_aborted_at_the_first_byte_reach_their_end(
    duo: Duo, session: str
) -> None:
    async def one(number: int) -> None:
        name = f"{session}-{number}"
        await abort_at_first_byte((duo.a, duo.b)[number % 2], name, reset=number % 4 < 2)
        async with duo.b.caller().events(name, turn="t", **START) as answer:
            await answer.until("turn.completed")
        assert answer.text == "w1 w2 w3 w4 w5 "

    for batch in range(4):
        await asyncio.gather(*(one(batch * 50 + number) for number in range(50)))
