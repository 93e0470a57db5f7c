"""The journal in SQLite: the contract, and what is this store's own."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from journal.builders import (
    EXPIRY,
    HOUR,
    KEY,
    NOW,
    clock,
    control,
    handed_back,
    head,
    lease,
    private,
    segment,
    start,
    takeover,
    turn,
)
from journal.contract import JournalContract, OpenJournal
from journal.workers import POSITIONS
from legato.errors import JournalRejected, JournalUnavailable, LegatoError
from legato.journal import Commit, Journal, Segment, SessionKey
from legato.journal.sqlite import SqliteJournal

DAYS = 24 * HOUR


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "journal.sqlite"


@pytest.fixture
async def open_journal(path: Path) -> AsyncIterator[OpenJournal]:
    opened: list[Journal] = []

    def open_one() -> Journal:
        opened.append(SqliteJournal(path, clock=lambda: NOW - 1, timeout=30))
        return opened[-1]

    yield open_one
    for journal in opened:
        await journal.close()


class TestSqlite(JournalContract):
    pass


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def worker(work: str, path: Path, name: str) -> subprocess.Popen[str]:
    """A process that begins its work when a line is written to it."""
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "shared")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", "journal.workers", work, str(path), name]
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def as_worker_wrote(first: int, last: int) -> Segment:
    return segment(first, last, commit="c1", text="x" * 2000)


class TestProcesses:
    async def test_of_two_processes_exactly_one_gets_each_position(self, path: Path, open_journal: OpenJournal) -> None:
        both = [worker("race", path, name) for name in "ab"]
        for process in both:
            print(file=process.stdin, flush=True)
        a, b = ({int(line) for line in process.communicate(timeout=60)[0].split()} for process in both)
        assert a | b == set(range(1, POSITIONS + 1))
        assert not a & b
        found = await open_journal().read(SessionKey("ann", "race"), 0, NOW)
        assert {s.first for s in found if s.commit == f"a-{s.first}"} == a

    async def test_a_process_killed_in_mid_write_leaves_whole_segments_and_all_it_acknowledged(
        self, path: Path, open_journal: OpenJournal
    ) -> None:
        with worker("append", path, "c1") as process:
            print(file=process.stdin, flush=True)
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(1500)]
            process.kill()
            lines += [line for line in process.stdout if line.endswith("\n")]
        acknowledged = {(session, int(first), int(last)) for session, first, last in map(str.split, lines)}
        found = set()
        for session in {session for session, *_ in acknowledged}:
            segments = await open_journal().read(SessionKey("ann", session), 0, NOW)
            numbers = [record.seq for segment in segments for record in segment.records()]
            assert numbers == list(range(1, len(numbers) + 1))
            assert segments == [as_worker_wrote(segment.first, segment.last) for segment in segments]
            found |= {(session, segment.first, segment.last) for segment in segments}
        assert acknowledged <= found
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]

    def test_a_process_that_never_closes_its_journal_exits(self, path: Path) -> None:
        with worker("idle", path, "s1") as process:
            process.communicate("\n", timeout=30)
            assert process.returncode == 0

    def test_processes_that_open_a_new_file_at_once_all_open_it(self, path: Path) -> None:
        all_of_them = [worker("idle", path, f"s{n}") for n in range(4)]
        for process in all_of_them:
            print(file=process.stdin, flush=True)
        for process in all_of_them:
            process.communicate(timeout=30)
        assert [process.returncode for process in all_of_them] == [0] * 4

    async def test_instances_that_open_a_new_file_at_once_all_open_it(self, open_journal: OpenJournal) -> None:
        await asyncio.gather(*(open_journal().check() for _ in range(12)))


async def test_a_new_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.sqlite", clock, timeout=30)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(journal.check())
        await asyncio.wait([opening], timeout=0.1)
        assert not opening.done()
    await opening
    await journal.close()


async def test_a_file_that_is_moved_away_is_neither_written_nor_read_until_it_is_back(
    open_journal: OpenJournal, path: Path
) -> None:
    journal, away = open_journal(), path.with_name("away")
    await journal.commit(KEY, start())
    os.rename(path, away)
    for use in (lambda: journal.append(KEY, segment(2)), lambda: journal.read(KEY, 1, NOW), journal.check):
        with pytest.raises(JournalRejected, match="moved, deleted or replaced"):
            await use()
    os.rename(away, path)
    await journal.append(KEY, segment(2))
    assert [each.first for each in await journal.read(KEY, 1, NOW)] == [1, 2]


async def test_a_file_in_whose_place_another_process_has_begun_a_new_one_is_not_written(
    open_journal: OpenJournal, path: Path
) -> None:
    """The journal would be in two, each with an owner of its own."""
    journal = open_journal()
    await journal.commit(KEY, start())
    for name in os.listdir(path.parent):
        os.remove(path.parent / name)
    await open_journal().check()
    with pytest.raises(JournalRejected, match="moved, deleted or replaced"):
        await journal.append(KEY, segment(2))


async def test_a_write_of_this_process_wakes_who_waits_without_a_poll(
    open_journal: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.journal.sqlite.POLL_SECONDS", 3600)
    journal = open_journal()
    first = asyncio.create_task(journal.wait(KEY, 0, None, 60))
    await journal.append(KEY, segment(1))
    await first
    again = asyncio.create_task(journal.wait(KEY, 1, None, 60))
    await journal.append(KEY, segment(2))
    await asyncio.wait_for(again, 30)


async def test_a_turn_that_is_handed_back_wakes_who_waits_in_another_process(open_journal: OpenJournal) -> None:
    here, there = open_journal(), open_journal()
    begun = await here.commit(KEY, start())
    assert begun.head
    waiting = asyncio.create_task(there.wait(KEY, 5, begun.head.version, 60))
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    await here.commit(KEY, handed_back(begun))
    await asyncio.wait_for(waiting, 5)


async def test_a_turn_that_was_handed_back_wakes_who_comes_to_wait(open_journal: OpenJournal) -> None:
    here, there = open_journal(), open_journal()
    begun = await here.commit(KEY, start())
    assert begun.head
    await here.commit(KEY, handed_back(begun))
    await asyncio.wait_for(there.wait(KEY, 5, begun.head.version, 60), 5)


async def refusal(path: Path) -> LegatoError:
    journal = SqliteJournal(path, clock, timeout=0.05)
    try:
        with pytest.raises(LegatoError) as refused:
            await journal.check()
        with pytest.raises(type(refused.value)):
            await journal.standing(KEY)
    finally:
        await journal.close()
    assert str(path) in str(refused.value)
    return refused.value


def spoil(path: Path) -> None:
    """Leaves only the first page of a database as it was."""
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))


@contextmanager
def no_room() -> Iterator[None]:
    """No file can grow, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestTrouble:
    async def test_a_folder_in_its_place_is_rejected(self, tmp_path: Path) -> None:
        refused = await refusal(tmp_path)
        assert isinstance(refused, JournalRejected)
        assert "must be a file" in str(refused)

    async def test_a_file_where_its_folder_should_be_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert isinstance(await refusal(tmp_path / "file" / "journal.sqlite"), JournalRejected)

    async def test_a_file_that_is_no_database_is_rejected_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database " * 100)
        refused = await refusal(path)
        assert isinstance(refused, JournalRejected)
        assert "another path" in str(refused)
        assert path.read_text() == "not a database " * 100

    async def test_a_file_of_a_later_version_is_rejected(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "later.sqlite")) as db:
            db.execute("PRAGMA user_version = 99")
        assert isinstance(await refusal(tmp_path / "later.sqlite"), JournalRejected)

    async def test_a_broken_file_is_rejected(self, path: Path, open_journal: OpenJournal) -> None:
        journal = open_journal()
        await journal.commit(KEY, start())
        await journal.close()
        spoil(path)
        broken = open_journal()
        with pytest.raises(JournalRejected, match="restore it from a copy"):
            await broken.commit(SessionKey("bob", "s1"), start())

    async def test_what_was_in_the_way_and_went_away_is_forgotten(self, tmp_path: Path) -> None:
        (tmp_path / "journal.sqlite").mkdir()
        journal = SqliteJournal(tmp_path / "journal.sqlite", clock)
        with pytest.raises(JournalRejected):
            await journal.append(KEY, segment(1))
        (tmp_path / "journal.sqlite").rmdir()
        await journal.append(KEY, segment(1))
        await journal.close()

    async def test_a_file_locked_by_another_is_unavailable_to_writers_and_open_to_readers(self, path: Path) -> None:
        journal = SqliteJournal(path, clock, timeout=0.05)
        await journal.append(KEY, segment(1))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalUnavailable):
                await journal.append(KEY, segment(2))
            assert await journal.read(KEY, 0, NOW) == [segment(1)]
        await journal.append(KEY, segment(2))
        await journal.close()

    async def test_a_full_disk_rejects_what_is_written_until_there_is_room(self, open_journal: OpenJournal) -> None:
        journal = open_journal()
        await journal.append(KEY, segment(1))
        with no_room():
            results = await asyncio.gather(
                *(journal.append(KEY, segment(n, text="x" * 9000)) for n in (2, 3)), return_exceptions=True
            )
            assert await journal.read(KEY, 0, NOW) == [segment(1)]
        assert [type(error) for error in results] == [JournalRejected] * 2
        assert "free some space" in str(results[0])
        await journal.append(KEY, segment(2))
        assert await journal.read(KEY, 0, NOW) == [segment(1), segment(2)]

    async def test_an_id_that_is_not_unicode_is_rejected_and_harms_nobody_else(self, open_journal: OpenJournal) -> None:
        journal = open_journal()
        good, bad = await asyncio.gather(
            journal.append(KEY, segment(1)),
            journal.append(SessionKey("\ud800", "s1"), segment(1)),
            return_exceptions=True,
        )
        assert (good, type(bad)) == (None, JournalRejected)

    async def test_a_waiter_that_gives_up_leaves_no_transaction_open(self, open_journal: OpenJournal) -> None:
        a, b = open_journal(), open_journal()
        await a.check()
        for n in range(30):
            leaving = asyncio.create_task(a.append(SessionKey("ann", f"s{n}"), segment(1)))
            for _ in range(n % 6):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
        await b.append(KEY, segment(1))

    async def test_a_closed_journal_says_so_and_has_no_thread_left(self, path: Path) -> None:
        before = threading.enumerate()
        journal = SqliteJournal(path, clock)
        await asyncio.gather(journal.append(KEY, segment(1)), journal.wait(KEY, 5, None, 0.01))
        await journal.close()
        await journal.close()
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            thread.join(5)
        assert not any(thread.is_alive() for thread in left)
        with pytest.raises(JournalRejected, match="closed"):
            await journal.standing(KEY)
        with pytest.raises(JournalRejected, match="closed"):
            await journal.append(KEY, segment(2))

    async def test_closing_ends_a_wait(self, path: Path) -> None:
        journal = SqliteJournal(path, clock)
        waiting = asyncio.create_task(journal.wait(KEY, 0, None, 60))
        await journal.check()
        await journal.close()
        await asyncio.wait_for(waiting, 10)


async def purged(path: Path, now: int) -> None:
    """What a process that runs at `now` leaves of the file."""
    journal = SqliteJournal(path, clock=lambda: now)
    await journal.check()
    await journal.close()


class TestPurging:
    async def test_expired_segments_controls_and_turns_go_and_the_rest_stays(
        self, path: Path, open_journal: OpenJournal
    ) -> None:
        journal = open_journal()
        await journal.commit(KEY, Commit(segment(1, 3), head(1, 6), lease(), control("t1"), turn("t1")))
        await journal.commit(KEY, Commit(private=(private("x"), private("y", expires_at=EXPIRY + 1))))
        await journal.commit(KEY, Commit(segment(4, 6, expires_at=EXPIRY + 1), turn=turn("t2", expires_at=EXPIRY)))
        await journal.close()
        await purged(path, EXPIRY)
        assert rows(path, "SELECT first FROM segments") == [(4,)]
        assert rows(path, "SELECT turn FROM turns") == [("t1",)]
        assert rows(path, "SELECT name FROM privates") == [("y",)]
        assert rows(path, "SELECT count(*) FROM controls") == [(0,)]
        assert rows(path, "SELECT count(*) FROM leases JOIN heads USING (uid, session)") == [(1,)]

    async def test_a_purge_never_lets_a_position_be_handed_out_twice(
        self, path: Path, open_journal: OpenJournal
    ) -> None:
        journal = open_journal()
        await journal.commit(KEY, start())
        await journal.append(KEY, segment(2, 9, commit="c2"))
        await purged(path, EXPIRY + DAYS)
        assert (await journal.standing(KEY)).seq == 9
        assert await journal.read(KEY, 0, EXPIRY + DAYS) == []

    async def test_an_expired_head_takes_everything_with_it(self, path: Path, open_journal: OpenJournal) -> None:
        journal = open_journal()
        first = await journal.commit(KEY, start())
        assert first.lease
        await journal.commit(KEY, takeover(2, "c2", first.lease))
        await purged(path, head().expires_at)
        for table in ("segments", "turns", "heads", "leases", "controls"):
            assert rows(path, f"SELECT * FROM {table}") == []

    async def test_more_than_one_round_of_expired_rows_goes(self, path: Path, open_journal: OpenJournal) -> None:
        journal = open_journal()
        await asyncio.gather(*(journal.append(SessionKey("ann", f"s{n}"), segment(1)) for n in range(450)))
        late = SqliteJournal(path, clock=lambda: EXPIRY)
        while rows(path, "SELECT count(*) FROM segments") != [(0,)]:
            await late.check()
        await late.close()
