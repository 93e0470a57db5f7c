"""The journal in one SQLite file: for a laptop, for tests, for several processes of one machine.

One connection writes, in one transaction per group: what arrives while a transaction is in flight shares the next.
Another connection reads, so that readers never stand behind the writer. Each has a thread of its own (aiosqlite).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiosqlite

from legato.errors import JournalRejected, LegatoError
from legato.journal import (
    COMMIT_BYTES,
    PAGE,
    Commit,
    Control,
    Head,
    Lease,
    Page,
    Place,
    Segment,
    SessionItem,
    SessionKey,
    Standing,
    TurnRecord,
    Version,
    wakeups,
)
from legato.journal import sqlite_rows as rows
from legato.journal import sqlite_writes as writes
from legato.journal.grouping import Grouping
from legato.journal.sqlite_file import connection, explained, identity
from legato.journal.sqlite_rows import CONTROLS, HEADS, LEASES, Row
from legato.journal.wakeups import Marks, Waiters

GROUP_WRITES: Final = 500
READ_ROWS: Final = 32
"""Segments of one look. A cursor that stayed open over several would hold all readers to what it saw at first."""
POLL_SECONDS: Final = 0.05
PURGE_SECONDS: Final = 60


class _Database(NamedTuple):
    """`file` is the one that was opened, whatever is at its path by now."""

    writer: aiosqlite.Connection
    reader: aiosqlite.Connection
    file: tuple[int, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """One write of a group. `run` checks before it writes, so that its refusal leaves nothing behind; an append is its
    `segment`. Of one with a `key`, who waits for that session may be woken."""

    key: SessionKey | None = None
    segment: Segment | None = None
    run: Callable[[aiosqlite.Connection], Awaitable[Any]] = writes.nothing


class SqliteJournal:
    """`Journal` in the file `path`; the file and its folder are created on first use, in the loop that is running then.

    `clock` (ms) decides when expired rows are purged, and nothing else. `timeout`, in seconds, bounds the wait for
    another process that writes.
    """

    def __init__(self, path: str | Path, clock: Callable[[], int], timeout: float = 5) -> None:
        self._path = Path(path)
        self._timeout = timeout
        self._clock = clock
        self._opened: asyncio.Task[_Database] | None = None
        self._groups: Grouping[Any] = Grouping(
            self._transact, in_flight=1, max_writes=GROUP_WRITES, max_bytes=COMMIT_BYTES
        )
        self._waiters: Waiters[SessionKey] = Waiters()
        self._polling: asyncio.Task[None] | None = None
        self._purging: asyncio.Task[None] | None = None
        self._closed = False

    async def append(self, key: SessionKey, segment: Segment) -> None:
        await self._write(_Write(key, segment), self._measure(segment.events))

    async def renew(self, key: SessionKey, lease: Lease) -> Lease:
        renewed: Lease = await self._write(_Write(run=lambda db: writes.renew(db, key, lease)))
        return renewed

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        size = self._measure(*_texts(key, commit))
        written: Commit = await self._write(_Write(key, run=lambda db: writes.commit(db, key, commit)), size)
        return written

    async def standing(self, key: SessionKey, *, trust_head: bool = False) -> Standing:
        (row,) = await self._fetch(rows.STANDING, key)
        return rows.standing_of(row)

    async def lease(self, key: SessionKey) -> Lease | None:
        found = await self._fetch(writes.select(LEASES), key)
        return LEASES.of(found[0]) if found else None

    async def control(self, key: SessionKey) -> Control | None:
        found = await self._fetch(writes.select(CONTROLS), key)
        return CONTROLS.of(found[0]) if found else None

    async def read(self, key: SessionKey, since: int, now: int, limit: int = PAGE) -> list[Segment]:
        page, count = Page(limit), min(limit, READ_ROWS)
        while not page.full:
            found = await self._fetch(rows.SEGMENTS, (*key, since, now, *key, since, count))
            page.add(Segment(*row) for row in found)
            if len(found) < count:
                break
            since = page.segments[-1].last + 1
        return page.segments

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        found = await self._fetch(
            "SELECT name, text FROM privates WHERE uid = ? AND session = ? AND turn = ? AND expires_at > ?",
            (*key, turn, now),
        )
        return {row[0]: row[1] for row in found}

    async def turn(self, key: SessionKey, turn: str) -> TurnRecord | None:
        found = await self._fetch(
            f"SELECT {rows.TURN} FROM turns WHERE uid = ? AND session = ? AND turn = ?", (*key, turn)
        )
        return rows.turn_of(found[0]) if found else None

    async def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        found = await self._fetch(
            f"SELECT {rows.TURN} FROM turns WHERE uid = ? AND session = ? AND first < ? ORDER BY first DESC LIMIT ?",
            (*key, _bound(before), limit),
        )
        return [rows.turn_of(row) for row in reversed(found)]

    async def sessions(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        found = await self._fetch(
            f"SELECT session, version, {HEADS.columns} FROM heads WHERE uid = ? AND (updated_at, session) < (?, ?)"
            " AND NOT deleted ORDER BY updated_at DESC, session DESC LIMIT ?",
            (uid, *(before or (_bound(None), "")), limit),
        )
        return [SessionItem(session, HEADS.of(head)) for session, *head in found]

    async def orphans(self, now: int, limit: int) -> list[SessionKey]:
        found = await self._fetch(
            "SELECT uid, session FROM leases WHERE sweep_at <= ? AND expires_at <= ?"
            " ORDER BY sweep_at, uid, session LIMIT ?",
            (now, now, limit),
        )
        return [SessionKey(*row) for row in found]

    async def purge(self, key: SessionKey, tombstone: Head) -> None:
        await self._write(_Write(run=lambda db: writes.purge_session(db, key, tombstone)))

    async def wait(self, key: SessionKey, after: int, head: Version, timeout: float) -> bool:
        return await self._wait(key, wakeups.news(after, head), timeout)

    async def wait_control(self, key: SessionKey, known: Version, timeout: float) -> bool:
        return await self._wait(key, wakeups.asked(known), timeout)

    async def _wait(self, key: SessionKey, known: Marks, timeout: float) -> bool:
        with self._waiters.waiting(key, known) as woken:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
            await asyncio.wait([woken], timeout=timeout)
        return woken.done()

    async def check(self) -> None:
        await self._write(_Write())

    async def close(self) -> None:
        self._closed = True
        await self._groups.drain()
        self._waiters.wake_all()
        for task in (self._polling, self._purging):
            if task:
                task.cancel()
                await asyncio.wait([task])
        await self._disconnect()

    async def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        await asyncio.wait([opened])
        if not opened.cancelled() and opened.exception() is None:
            writer, reader, _ = opened.result()
            await writer.close()
            await reader.close()

    # Reading

    async def _fetch(self, sql: str, parameters: Iterable[Any]) -> list[Row]:
        if self._closed:
            raise _closed(self._path)
        database = await self._database()
        with explained(self._path):
            self._stay(database)
            return list(await database.reader.execute_fetchall(sql, parameters))

    async def _poll(self) -> None:
        """Looks what anybody, here or in another process, has written; as long as somebody waits."""
        seen: Row | None = None
        while self._waiters and not self._closed:
            try:
                seen = await self._look(seen or (await self._fetch(rows.NEWEST, ()))[0])
            except LegatoError:
                self._waiters.wake_all()
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, seen: Row) -> Row:
        """Wakes who came since the last look by how far the sessions are, all others by the rows after `seen`."""
        if fresh := self._waiters.take_fresh():
            for uid, session, *marks in await self._fetch(rows.MARKS, (json.dumps(fresh),)):
                self._waiters.wake(SessionKey(uid, session), Marks(*marks))
        written = await self._fetch(rows.WRITTEN, seen)
        for uid, session, *marks, _ in written:
            self._waiters.wake(SessionKey(uid, session), Marks(*marks))
        return tuple(max(column) for column in zip(seen, *(row[3:] for row in written), strict=True))

    # Writing

    async def _write(self, write: _Write, size: int = 0) -> Any:
        if self._closed:
            raise _closed(self._path)
        return await self._groups.put(write, size, write)

    async def _transact(self, group: list[_Write]) -> list[Any]:
        """What came of each write of the group: its answer, or the error that refused it alone."""
        database = await self._database()
        db = database.writer
        with explained(self._path):
            try:
                await db.execute_fetchall("BEGIN IMMEDIATE")
                self._stay(database)
                outcomes = await _outcomes(db, group)
                await db.execute_fetchall("COMMIT")
            except BaseException:
                await _rollback(db)
                raise
        for write, outcome in zip(group, outcomes, strict=True):
            if write.key and not isinstance(outcome, LegatoError):
                self._waiters.wake(write.key, _marks(write.segment, outcome))
        return outcomes

    def _measure(self, *texts: str) -> int:
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            raise JournalRejected(f"{self._path}: not UTF-8: {error}") from None
        if size > COMMIT_BYTES:
            raise JournalRejected(f"{self._path}: a write of {size} bytes is over the limit of {COMMIT_BYTES}")
        return size

    # Opening, and purging what expired

    async def _database(self) -> _Database:
        failed = self._opened and self._opened.done() and (self._opened.cancelled() or self._opened.exception())
        if self._opened is None or failed:
            self._opened = asyncio.create_task(self._open())
        return await asyncio.shield(self._opened)

    async def _open(self) -> _Database:
        with explained(self._path):
            writer = await connection(self._path, self._timeout)
            try:
                reader = await connection(self._path, self._timeout)
            except BaseException:
                await writer.close()
                raise
        self._purging = asyncio.create_task(self._keep_purging())
        return _Database(writer, reader, identity(self._path))

    def _stay(self, database: _Database) -> None:
        """Raises JournalRejected when the open file is not the one at its path any more: another process would open
        that one, and the journal be in two."""
        if identity(self._path) != database.file:
            raise JournalRejected(
                f"{self._path}: the file was moved, deleted or replaced while it is open; end every process that uses"
                " it, put it back if you want what it holds, and start again"
            )

    async def _keep_purging(self) -> None:
        while True:
            with suppress(LegatoError):
                while await self._write(_Write(run=lambda db: writes.purge_expired(db, self._clock()))):
                    pass
            await asyncio.sleep(PURGE_SECONDS)


async def _outcomes(db: aiosqlite.Connection, group: list[_Write]) -> list[Any]:
    """Appends first, all at once: writes of one group are all unanswered yet, so any order of them is a true one."""
    segments = [(write.key, write.segment) for write in group if write.key and write.segment]
    appended = iter(await writes.append(db, segments))
    return [next(appended) if write.segment else await _attempt(db, write) for write in group]


async def _attempt(db: aiosqlite.Connection, write: _Write) -> Any:
    try:
        return await write.run(db)
    except LegatoError as refused:
        return refused


def _marks(appended: Segment | None, outcome: Commit | None) -> Marks:
    """How far the session of a write is after it."""
    if outcome is None:
        return Marks(seq=appended.last if appended else 0)
    segment, head, control = outcome.segment, outcome.head, outcome.control
    seq = max(segment.last if segment else 0, head.seq if head else 0)
    return Marks(seq, head.version if head else 0, control.version if control else 0)


async def _rollback(db: aiosqlite.Connection) -> None:
    with suppress(sqlite3.Error):
        await db.execute_fetchall("ROLLBACK")


def _texts(key: SessionKey, commit: Commit) -> Iterator[str]:
    """What a commit's size is measured by."""
    if commit.segment:
        yield commit.segment.events
    if commit.turn:
        yield from (value for value in rows.turn_row(key, commit.turn) if isinstance(value, str))
    for private in commit.private:
        yield from (private.name, private.text or "")


def _bound(before: int | None) -> int:
    return (1 << 62) if before is None else before


def _closed(path: Path) -> LegatoError:
    return JournalRejected(f"{path}: the journal is closed")
