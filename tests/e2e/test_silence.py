"""A tool that says nothing for longer than a proxy on the way endures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conftest import Place
from harness import Face, TcpProxy
from legato.client import LegatoClient, Run
from legato.events import ToolProgress

ENDURES = 15
SCRIPT = '/say 3 20\n/tool slow {"seconds": 25}\n/tool transfer {"amount": 1}\n/say 3 20'


@pytest.fixture
def place(sqlite_url: str, tmp_path: Path) -> Place:
    return Place(sqlite_url, "asgi", tmp_path)


async def through(place: Place, face: Face, ping: str) -> tuple[Run, list[str], int]:
    """A turn as its client lived through it, what its silent tool reported, and how many connections that took."""
    name = f"{face}-{ping}"
    async with (
        place._replace(face=face).server(name, LEGATO_PING=ping) as server,
        TcpProxy(server.port, idle=ENDURES) as proxy,
        LegatoClient(proxy.url, "dev:ann") as client,
        client.turn(name, SCRIPT) as run,
    ):
        reports = [
            str(update.event.payload.message)
            async for update in run
            if update.event and isinstance(update.event.payload, ToolProgress)
        ]
        return run, reports, proxy.accepted


async def test_pings_keep_a_silent_stream_open_and_without_them_it_is_resumed(place: Place) -> None:
    """On both faces: the turn is whole, and its tools ran once, however many connections its client needed."""
    faces: list[Face] = ["asgi", "flask"]
    asked = [(face, ping) for face in faces for ping in ("8", "1000")]
    for (_, ping), (run, reports, connections) in zip(
        asked, await asyncio.gather(*(through(place, *each) for each in asked)), strict=True
    ):
        assert connections == (1 if ping == "8" else 2)
        assert run.status == "completed"
        assert run.turn
        assert run.turn.output == "w1 w2 w3 w4 w5 w6 "
        assert reports == ["working for 25 s", "done"]
    assert len(place.ledger.read_text().splitlines()) == len(asked)
