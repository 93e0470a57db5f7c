"""What a process is given at its start is wrong: it says so clearly, harms nothing, and serves once that is mended."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from e2e.following import journaled
from harness import Server
from legato.errors import SettingsError
from legato.settings import Settings, read_settings

NONE = {"drain", "model_retries", "auth_check", "turns_active", "streams_open", "turns_per_minute"}
"""Settings of which none at all is a good value."""
WRONG = {
    "LEGATO_JOURNAL": [
        "postgres://db",
        "sqlite:",
        "sqlite:journal",
        "sqlite:/journal",
        "sqlite:///a?b",
        "firestore://p",
    ],
    "LEGATO_AUTH": ["", "firebase:", "firebase:My_Project", "firebase:p:q", "ours", "none"],
    "LEGATO_APP_CHECK": ["", "on", "my-project"],
    "LEGATO_AGENT": ["", "agent", "my agent:x", "a:b:c"],
    "LEGATO_ORIGINS": ["example.com", "https://example.com/", "*"],
    **{
        f"LEGATO_{name.upper()}": ["", *(["0"] if name not in NONE else []), "-1", "nan", "1e9", "soon"]
        for name, field in Settings.model_fields.items()
        if field.annotation is float
    },
    **{
        f"LEGATO_{name.upper()}": ["", *(["0"] if name not in NONE else []), "-1", "1.5", "2 MiB"]
        for name, field in Settings.model_fields.items()
        if field.annotation is int
    },
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_setting_is_named_with_its_value(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as told:
        read_settings()
    assert f"{name}={value!r}: " in str(told.value)


async def test_a_process_with_wrong_settings_does_not_start_and_names_them_all(tmp_path: Path) -> None:
    wrong = {name: values[-1] for name, values in WRONG.items()}
    server = Server(wrong["LEGATO_JOURNAL"], tmp_path / "log", env=wrong)
    with pytest.raises(RuntimeError):
        async with server:
            pass
    assert all(f"{name}={value!r}" in server.output() for name, value in wrong.items())


async def test_an_agent_that_cannot_be_imported_is_a_problem_and_named_in_the_log(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/journal", tmp_path / "log", env={"LEGATO_AGENT": "nowhere.agents:agent"})
    starting = asyncio.create_task(server.start())
    try:
        answer = await first_answer(server)
    finally:
        starting.cancel()
        await server.__aexit__()
    assert (answer.status_code, answer.json()["code"]) == (500, "settings")
    assert "nowhere" not in answer.text
    assert "LEGATO_AGENT='nowhere.agents:agent': No module named 'nowhere'" in server.output()


async def first_answer(server: Server) -> httpx.Response:
    async with asyncio.timeout(30):
        while True:
            with suppress(httpx.TransportError):
                return await server.caller().request("GET", "/health")
            await asyncio.sleep(0.05)


# Places where no journal can be kept, and what mends them.


def folder(path: Path) -> Callable[[], None]:
    path.mkdir()
    return path.rmdir


def below_a_file(path: Path) -> Callable[[], None]:
    path.parent.rmdir()
    path.parent.touch()
    return path.parent.unlink


def nowhere_to_write(path: Path) -> Callable[[], None]:
    path.symlink_to("/proc/journal.sqlite")
    return path.unlink


def no_database(path: Path) -> Callable[[], None]:
    path.write_text("Dear diary,\n" * 1000)
    return path.unlink


def damaged(path: Path) -> Callable[[], None]:
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    return path.unlink


def of_a_later_version(path: Path) -> Callable[[], None]:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    return path.unlink


def of_another_program(path: Path) -> Callable[[], None]:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE turns (turn TEXT)")
    return path.unlink


async def whole(server: Server, session: str) -> list[str]:
    """A turn from its beginning to its end."""
    async with server.caller().start(session, "/say 3", "t") as answer:
        await answer.rest()
    assert answer.text == "w1 w2 w3 "
    assert answer.ended
    return journaled(answer.messages)


@pytest.mark.parametrize(
    "spoil",
    [folder, below_a_file, nowhere_to_write, no_database, damaged, of_a_later_version, of_another_program],
    ids=lambda f: f.__name__,
)
async def test_a_file_that_can_be_no_journal_is_a_problem_until_it_is_mended(
    spoil: Callable[[Path], Callable[[], None]], tmp_path: Path
) -> None:
    path = tmp_path / "kept" / "journal.sqlite"
    path.parent.mkdir()
    mend = spoil(path)
    before = path.read_bytes() if path.is_file() else None
    async with Server(f"sqlite:///{path}", tmp_path / "log") as server:
        answer = await server.caller().begin("s", "hello")
        assert (answer.status_code, answer.json()["code"]) == (500, "journal_rejected")
        assert str(path) not in answer.text
        assert f"{path}: " in server.output()
        assert (path.read_bytes() if path.is_file() else None) == before
        mend()
        assert len(await whole(server, "s")) == 5


def largest(directory: Path) -> int:
    return max(file.stat().st_size for file in directory.glob("journal.sqlite*"))


async def test_a_full_disk_stops_turns_it_cannot_store_and_leaves_the_process_serving(tmp_path: Path) -> None:
    """What was stored is still read; a new turn is a problem; what ran is taken over when there is room again."""
    path = tmp_path / "journal.sqlite"
    async with Server(f"sqlite:///{path}", tmp_path / "log", env={"LEGATO_LEASE": "1.5"}) as server:
        before = await whole(server, "before")
        async with server.caller().start("during", "/say 600 40", "t") as running:
            await running.until("text.delta")
            (worker,) = server.workers()
            _, most = resource.prlimit(worker, resource.RLIMIT_FSIZE)
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (largest(tmp_path), most))
            await running.rest()
            assert not running.ended
            answer = await server.caller().begin("new", "hello")
            assert (answer.status_code, answer.json()["code"]) == (500, "journal_rejected")
            assert "its disk is full, over quota or broken: free some space" in server.output()
            async with server.caller().events("before", turn="t", **{"from": "start"}) as replay:
                await replay.rest()
            assert journaled(replay.messages) == before
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (most, most))
        async with server.caller().events("during", running.cursor, turn="t") as resumed:
            await resumed.rest()
        (turn,) = (await server.caller().snapshot("during")).json()["turns"]
        assert (turn["status"], len(turn["output"].split())) == ("completed", 600)
        assert turn["output"].startswith(running.text)
        assert len(await whole(server, "new")) == 5
