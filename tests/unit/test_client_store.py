"""What a client keeps on disk, and how it goes on after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from client_play import FINAL, PAYLOADS, TURN, WHOLE, client_of, frames, live, log, play, seqs, state_of
from legato import events
from legato.client import FileStore
from legato.client.store import Saved, Sent
from legato.errors import NotFound
from legato.turn import SessionState
from scripted_server import ScriptedServer, serving, stream


async def test_leaving_a_run_keeps_its_cursor(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    async with serving(stream(frames(TURN[:3]), hang=True)) as server, client_of(server, store=store) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        async with run:
            async for update in run:
                if seqs([update]) == [3]:
                    break
    saved = FileStore(tmp_path).load("s_1")
    assert saved is not None
    assert (saved.state, saved.sent and saved.sent.turn) == (state_of(TURN[:3]), "t_1")


async def test_a_turn_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    found = list[Any]()

    async def answer(writer: asyncio.StreamWriter) -> None:
        found.append(FileStore(tmp_path).load("s_1"))
        await stream(WHOLE)(writer)

    async with serving(answer) as server:
        await play(server, store=FileStore(tmp_path))
    assert (found[0].sent.turn, found[0].sent.body) == ("t_1", {"turn": "t_1", "input": "hi"})


async def test_a_finished_turn_is_stored_with_nothing_left_to_do(tmp_path: Path) -> None:
    async with serving(stream(WHOLE)) as server:
        await play(server, store=FileStore(tmp_path))
        async with client_of(server, store=FileStore(tmp_path)) as client:
            assert client.unfinished("s_1") is None
            with pytest.raises(NotFound):
                client.resume("s_1")
    assert os.listdir(tmp_path) == ["s_1.json"]


async def test_a_run_left_at_its_terminal_event_leaves_nothing_to_do(tmp_path: Path) -> None:
    async with serving(stream(WHOLE)) as server, client_of(server, store=FileStore(tmp_path)) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        async with run:
            async for update in run:
                if update.status == "completed":
                    break
    assert FileStore(tmp_path).load("s_1") == Saved(FINAL)


async def test_following_a_session_does_not_forget_the_turn_that_is_still_to_be_sent(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.save("s_1", Saved(SessionState("s_1"), Sent("t_2", {"turn": "t_2", "input": "hi"})))
    async with serving(stream(frames(TURN), hang=True)) as server, client_of(server, store=store) as client:
        run = client.follow("s_1")
        async with run:
            async for update in run:
                if update.state == FINAL:
                    break
        assert client.unfinished("s_1") == "t_2"
    assert server.requests[0].method == "GET"


async def test_tokens_do_not_each_cost_a_write(tmp_path: Path) -> None:
    class Counting(FileStore):
        writes = 0

        def save(self, *args: Any) -> None:
            self.writes += 1
            super().save(*args)

    store = Counting(tmp_path)
    words = log([PAYLOADS[0], *[events.TextDelta(step=1, text="w ")] * 500, events.TurnCompleted(text="w")])
    async with serving(stream(frames(words))) as server:
        run, _ = await play(server, store=store)
    assert run.status == "completed"
    assert store.writes <= 3


CHILD = """
import asyncio, sys
from legato.client import FileStore, LegatoClient
async def main(url, directory):
    async with LegatoClient(url, "dev:ann", FileStore(directory)) as client:
        run = client.resume("s_1") if client.unfinished("s_1") else client.turn("s_1", "hi", turn="t_1")
        async with run:
            async for update in run:
                if update.event:
                    print(update.event.seq, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


async def child(server: ScriptedServer, store: Path, lines: int | None) -> str:
    """Runs a client in a process of its own; kills it with SIGKILL after `lines` lines of output, or when cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, server.url, str(store), stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        if lines is not None:
            for _ in range(lines):
                await process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        return (await process.stdout.read()).decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_client_killed_in_mid_turn_goes_on_in_its_next_process(tmp_path: Path) -> None:
    async with serving(stream(frames(TURN[:3]), hang=True), stream(WHOLE)) as server:
        await child(server, tmp_path, lines=3)
        await child(server, tmp_path, lines=None)
    saved = FileStore(tmp_path).load("s_1")
    assert saved is not None
    assert (saved.state, saved.sent) == (FINAL, None)
    assert server.requests[1].method == "POST" or server.requests[1].query == {"turn": "t_1"}


async def test_a_client_killed_before_its_post_is_answered_sends_the_same_turn_again(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with serving(silent, stream(WHOLE)) as server:
        running = asyncio.create_task(child(server, tmp_path, lines=None))
        await asked.wait()
        running.cancel()
        await asyncio.wait({running})
        async with client_of(server, store=FileStore(tmp_path)) as client:
            run = client.resume("s_1")
            await live(run)
    assert [request.body for request in server.requests] == [{"turn": "t_1", "input": "hi"}] * 2
    assert run.state == FINAL


def test_a_file_that_cannot_be_read_is_no_state_and_no_error(tmp_path: Path) -> None:
    for text in ["", "{", "[]", "{}", '{"snapshot": {}, "sent": null}', "\0"]:
        (tmp_path / "s_1.json").write_text(text)
        assert FileStore(tmp_path).load("s_1") is None


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.save("s_1", Saved(FINAL))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save("s_1", Saved(SessionState("s_1")))
    assert os.listdir(tmp_path) == ["s_1.json"]
    assert store.load("s_1") == Saved(FINAL)
