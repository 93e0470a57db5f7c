"""What is between a client and its instance holds back, buffers, resets or gives up; the turn arrives all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from e2e.duo import HERE, Duo, on_both_faces
from e2e.following import journaled
from harness import Caller, TcpProxy
from legato import sse
from legato.client import LegatoClient, Run, Timing

START = {"from": "start"}
SILENT = '/say 3 50\n/tool slow {{"seconds": {0}}}\n/say 3 50'
IMPATIENT = Timing(silence=1, first=0.05, most=0.1, wait=1)


@asynccontextmanager
async def reached(hop: TcpProxy) -> AsyncIterator[LegatoClient]:
    """A client of the instance behind the hop. It asks for its connections to be closed: a hop of bytes knows no other
    end of an answer than that."""
    async with (
        httpx.AsyncClient(trust_env=False, verify=False, headers={"Connection": "close"}) as http,
        LegatoClient(hop.url, "dev:ann", http=http, timing=IMPATIENT) as client,
    ):
        yield client


async def test_pings_keep_a_follower_of_a_silent_tool_connected_on_an_instance_that_does_not_run_it(
    duo: Duo, session: str
) -> None:
    """The hop endures a third of the tool's silence."""
    async with TcpProxy(duo.b.port, idle=1) as hop:
        await duo.a.caller().begin(session, SILENT.format(3), "t")
        async with Caller(hop.url).events(session, turn="t", **START) as follower:
            await follower.rest()
    assert (follower.ended, follower.broken) == (True, False)
    assert journaled(follower.messages) == await duo.replay(session, "t")


@on_both_faces
async def test_a_hop_that_holds_back_4_kib_lets_the_first_frame_and_pings_through(duo: Duo, session: str) -> None:
    async with (
        TcpProxy(duo.a.port, opening=4096) as hop,
        Caller(hop.url).start(session, SILENT.format(1.5), "t") as told,
    ):
        await told.until("tool.progress")
        running = (await duo.b.caller().snapshot(session)).json()["active"]
        await told.until("tool.result")
    assert running
    assert told.messages[0].event == "turn.started"
    assert told.raw.count(sse.PING) >= 3


async def behind(duo: Duo, session: str, buffer: int) -> tuple[Run, bool]:
    """A turn lived through behind a hop that passes on so many bytes at a time; and whether it ran on when it was first
    shown."""
    async with (
        TcpProxy(duo.a.port, buffer=buffer) as hop,
        reached(hop) as client,
        client.turn(session, SILENT.format(4.5), turn="t") as run,
    ):
        async for _ in run:
            if run.turn:
                break
        running = (await duo.a.caller().snapshot(session)).json()["active"]
        async for _ in run:
            pass
    return run, bool(running)


@pytest.mark.parametrize("duo", HERE[:1], indirect=True)
async def test_a_client_behind_a_hop_that_never_lets_go_of_a_stream_follows_by_the_long_poll(
    duo: Duo, session: str
) -> None:
    """In pieces of 4 KiB or whole: two silences later it is shown the turn while that runs, not when it is over."""
    buffers = (4096, 1 << 30)
    for run, running in await asyncio.gather(*(behind(duo, f"{session}-{buffer}", buffer) for buffer in buffers)):
        assert running
        assert run.turn
        assert (run.status, run.turn.output) == ("completed", "w1 w2 w3 w4 w5 w6 ")


@on_both_faces
async def test_a_client_reset_in_mid_frame_again_and_again_tells_its_turn_exactly(duo: Duo, session: str) -> None:
    """Each connection is reset a few bytes later in its frames than the last one."""
    async with TcpProxy(duo.a.port, reset=True) as hop, reached(hop) as client:
        hop.cut_after = least = len(sse.OPENING) + 1000
        async with client.turn(session, "/say 100 200", turn="t") as run:
            told = []
            async for update in run:
                hop.cut_after = least + 17 * hop.accepted % 200
                told += [update.event.seq] if update.event else []
        hop.cut_after = None
        assert run.state == await client.snapshot(session)
    assert told == list(range(1, 103))
    assert hop.accepted > 20
