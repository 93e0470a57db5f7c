"""The SQLite file itself: opening it beside other processes, and what its errors mean."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiosqlite

from legato.errors import JournalRejected, JournalUnavailable, LegatoError
from legato.journal.sqlite_rows import FORMAT, SCHEMA

WAL_BYTES: Final = 64 * 1024 * 1024

_TRANSIENT: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
    }
)
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_IOERR_WRITE: "its disk is full, over quota or broken: free some space",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_PERM: "make the file and its folder readable and writable",
    sqlite3.SQLITE_CANTOPEN: "it must be a file, not a folder, that this user may read and write",
    sqlite3.SQLITE_NOTADB: "choose another path, or move this file away",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy, or move it away",
}


async def connection(path: Path, timeout: float) -> aiosqlite.Connection:
    """An open connection with a thread of its own; the file, its folder and its tables exist afterwards.

    `timeout`: seconds to wait while another process writes. Raises what `explained` explains.
    """
    connection = aiosqlite.Connection(lambda: _connect(path, timeout), iter_chunk_size=64)
    # A process that never got to close its journal must be able to exit; SQLite undoes what was not committed.
    connection._thread.daemon = True
    try:
        return await connection
    except Exception:
        # aiosqlite has told its thread to end but not waited; it must not outlive the loop that it answers to.
        connection._thread.join()
        raise


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        _refuse_another(db, path)
        _switch_to_wal(db, timeout)
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        _create_schema(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _switch_to_wal(db: sqlite3.Connection, timeout: float) -> None:
    """The switch needs the file for itself and does not wait for it, so processes that start at once collide."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _create_schema(db: sqlite3.Connection, path: Path) -> None:
    if _format(db) == 0:
        db.execute("BEGIN IMMEDIATE")
        if _format(db) == 0:
            for statement in SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    _refuse_another(db, path)


def _refuse_another(db: sqlite3.Connection, path: Path) -> None:
    """Raises JournalRejected, the file untouched, when it is neither empty nor a journal of this version."""
    found = db.execute("SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version").fetchone()
    if found[0] not in (0, FORMAT):
        raise JournalRejected(f"{path}: written by another version of Legato; update it, or choose another path")
    if found[0] == 0 and found[1]:
        raise JournalRejected(f"{path}: the database of another program; choose another path")


def _format(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at `path` from any other that was there or will be, for as long as it is open somewhere; None
    when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors in the words of the port."""
    try:
        yield
    except sqlite3.Error as error:
        raise _in_words(path, error) from error
    except (OSError, OverflowError, UnicodeEncodeError) as error:
        raise JournalRejected(f"{path}: {error}") from error


def _in_words(path: Path, error: sqlite3.Error) -> LegatoError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    advice = _ADVICE.get(code) or _ADVICE.get(code & 0xFF)
    if advice is None and code & 0xFF in _TRANSIENT:
        return JournalUnavailable(f"{path}: {error}")
    return JournalRejected(f"{path}: {error}" + (f"; {advice}" if advice else ""))
