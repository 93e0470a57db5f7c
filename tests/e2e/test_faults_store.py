"""A store that fails at any call costs a turn nothing, and what it has lost is said by a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from conftest import Place
from e2e.duo import Duo
from e2e.following import journaled, reduced, seq
from e2e.segments import Segments
from harness import Answer, Face, Server
from journal.grpc_proxy import Fault, GrpcProxy
from legato.events import Record
from legato.sse import Message

START = {"from": "start"}
SCRIPT = '/say 2\n/tool transfer {"amount": 1}\n/say 2'
KINDS = ["turn.started", *["text.delta"] * 2, "tool.call", "tool.result", *["text.delta"] * 2, "turn.completed"]
TWICE = "lose, and refuse the next call too"
FAULTS = ["refuse", "lose", TWICE]


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> Face:
    """What the store does to a turn does not depend on the face."""
    chosen: Face = request.param
    return chosen


@pytest.fixture
async def hop(emulator: str) -> AsyncIterator[GrpcProxy]:
    async with GrpcProxy(emulator) as proxy:
        yield proxy


def strike(hop: GrpcProxy, fault: str, code: grpc.StatusCode, call: int) -> Fault:
    """Sets the fault for the call of that number from now on; its `arrived` tells whether there was one."""
    first = hop.refuse(code, skip=call) if fault == "refuse" else hop.lose(code, skip=call)
    if fault == TWICE:
        hop.refuse(code, skip=call)
    return first


async def told(server: Server, session: str) -> Answer:
    async with server.caller().start(session, SCRIPT, "t") as answer:
        await answer.rest(60)
    return answer


@pytest.mark.emulator
@pytest.mark.parametrize("code", ["ABORTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"])
async def test_a_failure_at_any_call_of_a_turn_loses_nothing_and_repeats_nothing(
    hop: GrpcProxy, firestore_url: str, face: Face, tmp_path: Path, code: str
) -> None:
    place = Place(firestore_url, face, tmp_path)
    async with place.server("a", FIRESTORE_EMULATOR_HOST=hop.host, LEGATO_FLUSH="0.02") as server:
        await told(server, "warm")
        ran = [await struck_at_each_call(server, hop, fault, grpc.StatusCode[code]) for fault in FAULTS]
    ledger = place.ledger.read_text().splitlines()
    assert len(ledger) == len(set(ledger)) == sum(ran) + 1


async def struck_at_each_call(server: Server, hop: GrpcProxy, fault: str, code: grpc.StatusCode) -> int:
    """Turn after turn, each with the fault at its next call, until one needs no more of them; how many there were."""
    for call in range(100):
        name = f"{FAULTS.index(fault)}-{call}"
        struck = strike(hop, fault, code, call)
        events = journaled((await told(server, name)).messages)
        hop.clear()
        assert [(seq(data), Record.of(data).type) for data in events] == list(enumerate(KINDS, 1)), (name, code)
        async with server.caller().events(name, turn="t", **START) as replay:
            assert journaled(await replay.rest()) == events
        if not struck.arrived.is_set():
            assert call >= 5
            return call + 1
    raise AssertionError("a turn of 8 events needs 100 calls")


LONG = "\n".join('/say 3\n/tool lookup {"key": "k"}' for _ in range(4))


async def whole(duo: Duo, session: str) -> list[Message]:
    """A turn of several segments, told to its end."""
    async with duo.a.caller().start(session, LONG, "t") as answer:
        await answer.rest()
    return answer.messages


async def test_what_has_expired_is_not_sent_though_it_is_still_there(duo: Duo, session: str) -> None:
    told = await whole(duo, session)
    segments = Segments(duo.place.journal, session)
    *gone, kept = [first for first in await segments.firsts() if first < 12]
    for first in gone:
        await segments.expire(first)
    for k, message in enumerate(told[:-1], 1):
        rest = (await duo.rest((duo.a, duo.b)[k % 2], session, message.id, turn="t")).messages
        assert (rest[0].event == "snapshot") == (k < kept), k
        assert journaled(rest) == ([] if k < kept else journaled(told[k:]))
        assert reduced(session, [*told[:k], *rest]).turns == reduced(session, told).turns


async def test_a_hole_in_the_middle_is_told_by_a_snapshot(duo: Duo, session: str) -> None:
    told = await whole(duo, session)
    segments = Segments(duo.place.journal, session)
    firsts = await segments.firsts()
    hole, behind = firsts[len(firsts) // 2 : len(firsts) // 2 + 2]
    await segments.delete(hole)
    for k, message in enumerate(told[:-1], 1):
        rest = (await duo.rest((duo.a, duo.b)[k % 2], session, message.id, turn="t")).messages
        assert (rest[-1].event == "snapshot") == (k < behind), k
        assert journaled(rest) == journaled(told[k : hole - 1] if k < behind else told[k:])
        assert reduced(session, [*told[:k], *rest]).turns == reduced(session, told).turns


async def test_a_hole_in_a_turn_that_runs_is_told_by_a_snapshot_and_the_turn_goes_on(duo: Duo, session: str) -> None:
    """Whoever comes after the hole cannot be told what was in it before the turn has ended; its text it gets whole."""
    async with duo.a.caller().start(session, f"{LONG}\n/sleep 1\n/say 20 20", "t") as live:
        await live.until(lambda message: '"call":"4-1"' in message.data and message.event == "tool.result")
        await Segments(duo.place.journal, session).delete((await Segments(duo.place.journal, session).firsts())[2])
        here, there, _ = await asyncio.gather(
            duo.rest(duo.a, session, turn="t", **START), duo.rest(duo.b, session, turn="t", **START), live.rest(60)
        )
    assert "snapshot" in [message.event for message in there.messages]
    for answer in (here, there):
        assert answer.messages[-1] == live.messages[-1]
        assert reduced(session, answer.messages).turns[-1].output == reduced(session, live.messages).turns[-1].output
