"""A journal that does not answer, or refuses: a clear problem, and the instance stays alive."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness import Face, Port, Server
from http_raw import refused, send


@pytest.fixture
async def adrift(face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    """An instance whose Firestore is a port where nobody listens."""
    port = Port()
    env = {"FIRESTORE_EMULATOR_HOST": f"127.0.0.1:{port.number}"}
    async with Server("firestore://demo-away/(default)", tmp_path / "log", face, env) as server:
        yield server
    port.release()


@pytest.fixture
async def blocked(face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    """An instance whose SQLite file cannot be created."""
    (tmp_path / "file").touch()
    async with Server(f"sqlite:///{tmp_path}/file/journal.sqlite", tmp_path / "log", face) as server:
        yield server


@pytest.fixture
async def kept(face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(f"sqlite:///{tmp_path}/journal.sqlite", tmp_path / "log", face) as server:
        yield server


@pytest.mark.parametrize(("script", "seen"), [("/say 1200 20", "text.delta"), ("/say 1", "turn.completed")])
async def test_a_journal_that_is_gone_in_mid_stream_is_a_last_frame_and_words_in_the_log(
    kept: Server, tmp_path: Path, script: str, seen: str
) -> None:
    """While a turn runs here, and while the session is at rest."""
    caller = kept.caller()
    assert (await caller.begin("s", script)).status_code == 202
    async with caller.events("s", **{"from": "start"}) as answer:
        await answer.until(seen)
        os.rename(tmp_path / "journal.sqlite", tmp_path / "away")
        last = (await answer.rest())[-1]
    assert (last.event, json.loads(last.data)["reason"]) == ("stream.closing", "lease")
    assert "moved, deleted or replaced" in kept.output()


async def test_a_journal_that_does_not_answer_is_503_with_retry_after(adrift: Server) -> None:
    caller = adrift.caller()
    for answer in await asyncio.gather(caller.begin("s", "hello"), caller.snapshot("s")):
        refused(answer, 503, "journal_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert (await send(adrift.caller(), "GET", "/health")).status_code == 200


async def test_a_journal_that_cannot_be_kept_is_a_problem_whose_words_stay_in_the_log(
    blocked: Server, tmp_path: Path
) -> None:
    answer = await blocked.caller().begin("s", "hello")
    refused(answer, 500, "journal_rejected")
    assert str(tmp_path) not in answer.text
    assert str(tmp_path) in blocked.output()
    assert (await send(blocked.caller(), "GET", "/health")).status_code == 200
