"""An instance whose streams are all taken is an instance that still answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from conftest import Place
from e2e.following import eventually
from harness import Answer, Face, Server
from legato.client import LegatoClient, Timing

CROWD = 100
ROOM = {"flask": 6, "asgi": CROWD}
"""Streams at once: of 8 threads, 2 are kept from them; the ASGI face has no bound."""
ENDLESS = "/say 100000 20"


@pytest.fixture
async def server(sqlite_url: str, face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    async with Place(sqlite_url, face, tmp_path).server(THREADS="8", LEGATO_PING="0.3") as server:
        yield server


@pytest.fixture
async def streams(server: Server) -> AsyncIterator[list[Answer]]:
    """Those who come in of a crowd, each in mid-answer; the turn they follow runs on."""
    await server.caller().begin("s", ENDLESS, "t")
    headers = {"Accept": "text/event-stream"}
    async with AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(
                server.caller().open("GET", "/v1/sessions/s/events", headers=headers, timeout=5)
            )
            for _ in range(CROWD)
        ]
        answers = [answer for answer in crowd if answer.status == 200]
        assert len(answers) == ROOM[server.face]
        for answer in answers:
            await answer.until("text.delta")
        yield answers


async def test_every_other_request_is_answered_while_every_stream_that_there_is_room_for_is_open(
    server: Server, streams: list[Answer]
) -> None:
    caller = server.caller()
    await caller.begin("waits", '/tool wire {"amount": 1}', "t")
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, verify=False, timeout=1) as http:
        assert (await http.get("/health")).json()["status"] == "ok"
    await eventually(lambda: waits(server))
    assert (await caller.decide("waits", "t", "1-1-1", approved=False)).status_code == 202
    assert (await caller.cancel("s", "t")).status_code == 202
    for answer in streams:
        await answer.until("turn.interrupted")


async def waits(server: Server) -> bool:
    active = (await server.caller().snapshot("waits")).json()["active"]
    return bool(active["status"] == "waiting")


@pytest.mark.parametrize("face", ["flask"])
async def test_a_stream_too_many_is_refused_before_anything_has_begun(server: Server, streams: list[Answer]) -> None:
    caller = server.caller()
    async with caller.start("new", "/say 3", "t") as refused:
        assert (refused.status, (await refused.json())["code"]) == (503, "no_room")
    assert refused.headers["Retry-After"] == "1"
    assert (await caller.request("GET", "/v1/sessions/s/events?wait=1", Accept="application/json")).status_code == 503
    assert (await caller.snapshot("new")).status_code == 404


@pytest.mark.parametrize("face", ["flask"])
async def test_a_client_gets_its_stream_as_soon_as_another_ends(server: Server) -> None:
    async with AsyncExitStack() as stack:
        opening = [server.caller().start("s", "/say 20 20", "t") for _ in range(ROOM["flask"])]
        answers = [await stack.enter_async_context(answer) for answer in opening]
        await answers[-1].until("text.delta")
        timing = Timing(first=0.1, most=0.1)
        async with LegatoClient(server.url, "dev:ann", timing=timing) as client, client.turn("new", "/say 3") as run:
            refusals = {str(run.refusal) async for _ in run if run.refusal}
    assert (len(refusals), run.status) == (1, "completed")
