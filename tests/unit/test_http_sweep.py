"""The sweep target over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from legato.app import build
from legato.http.asgi import AsgiFace
from legato.http.sweep import handle_sweep
from legato.settings import Settings


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(journal=f"sqlite:///{tmp_path}/journal.sqlite")
    face = AsgiFace(lambda: build(settings), handle=handle_sweep)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(face), base_url="http://sweep") as client:
        yield client
    await face.close()


async def test_a_sweep_is_told_in_figures(http: httpx.AsyncClient) -> None:
    answer = await http.post("/", json={"a scheduler": "may send what it likes"})
    figures = answer.json()
    assert answer.status_code == 200
    assert figures.pop("seconds") < 5
    assert figures == dict.fromkeys(
        ["found", "ended", "waiting", "handed_back", "lost", "elsewhere", "refused", "running"], 0
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_a_sweep_is_a_post_and_nothing_else(http: httpx.AsyncClient, method: str) -> None:
    answer = await http.request(method, "/")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


async def test_a_sweep_that_the_journal_refuses_is_a_problem(http: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").mkdir()
    answer = await http.post("/")
    assert (answer.status_code, answer.json()["code"]) == (500, "journal_rejected")
