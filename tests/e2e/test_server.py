"""The instances that the other tests kill, freeze and end are ended as the platform would end them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from harness import Face, Server


@pytest.fixture
async def server(sqlite_url: str, face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(sqlite_url, tmp_path / "log", face) as server:
        yield server


async def health(server: Server, timeout: float = 5) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=timeout) as http:
        return (await http.get(f"{server.url}/health")).status_code


async def test_a_killed_instance_leaves_its_port_to_the_next(server: Server) -> None:
    before = server.workers()
    server.kill9()
    with pytest.raises(httpx.ConnectError):
        await health(server)
    await server.start()
    assert await health(server) == 200
    assert len(before) == len(server.workers()) == 1
    assert before != server.workers()


async def test_a_frozen_instance_is_silent_until_it_thaws(server: Server) -> None:
    server.sigstop()
    with pytest.raises(httpx.TimeoutException):
        await health(server, timeout=0.5)
    server.sigcont()
    assert await health(server) == 200


async def test_an_idle_instance_ends_at_once_when_told_to(server: Server) -> None:
    assert await server.terminate() < 8
    assert "Traceback" not in server.output()


async def test_a_server_that_cannot_start_says_why(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="LEGATO_LEASE='never'"):
        async with Server(sqlite_url, tmp_path / "log", env={"LEGATO_LEASE": "never"}):
            pass
