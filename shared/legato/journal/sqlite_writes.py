"""The writes of the SQLite store, each inside a transaction that its caller has begun.

Each checks all its preconditions before it writes anything: a refusal (LeaseLost, Conflict) leaves nothing behind, and
the other writes of the same transaction go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from aiosqlite import Connection

from legato.errors import Conflict, LeaseLost
from legato.journal import Commit, Head, Lease, Private, Segment, SessionKey, Standing
from legato.journal import sqlite_rows as rows
from legato.journal.sqlite_rows import CONTROLS, HEADS, LEASES, Document, Table

PURGE_ROWS: Final = 200
_STALE: Final = 0
"""A version that no row ever has."""


async def append(db: Connection, segments: Sequence[tuple[SessionKey, Segment]]) -> list[LeaseLost | None]:
    """None for each segment that stands at its position now, written just now or by an earlier attempt."""
    if not segments:
        return []
    written = await db.executemany(_INSERT_SEGMENT, [rows.segment_row(*segment) for segment in segments])
    if written.rowcount == len(segments):
        return [None] * len(segments)
    return [await _lost(db, key, segment) for key, segment in segments]


async def _lost(db: Connection, key: SessionKey, segment: Segment) -> LeaseLost | None:
    if await _nonce(db, key, segment) == segment.commit:
        return None
    return LeaseLost(f"session {key.session}: position {segment.first} was taken by another owner")


async def renew(db: Connection, key: SessionKey, lease: Lease) -> Lease:
    stored = await _stored(db, LEASES, key)
    if stored is None or stored.epoch != lease.epoch:
        raise LeaseLost(f"session {key.session}: epoch {lease.epoch} is over")
    renewed = replace(lease, sweep_at=stored.sweep_at)
    if stored != renewed and stored.version != lease.version:
        raise Conflict(f"session {key.session}: the lease has changed since it was read")
    if stored != renewed:
        stored = await _put(db, LEASES, key, renewed)
    return replace(lease, version=stored.version)


async def commit(db: Connection, key: SessionKey, commit: Commit) -> Commit:
    (row,) = await db.execute_fetchall(rows.STANDING, key)
    standing = rows.standing_of(tuple(row))
    nonce = await _nonce(db, key, commit.segment) if commit.segment else None
    if commit.segment and nonce == commit.segment.commit:
        return _repeated(commit, standing)
    if nonce is not None:
        raise Conflict(f"session {key.session}: its next position is taken")
    _unchanged(key, commit, standing)
    await _standing(db, key, commit.private)
    await _write_turn(db, key, commit)
    for private in commit.private:
        await _write_private(db, key, private)
    if commit.segment:
        await db.execute_fetchall(_INSERT_SEGMENT, rows.segment_row(key, commit.segment))
    return replace(
        commit,
        head=await _put(db, HEADS, key, commit.head) if commit.head else None,
        lease=await _put(db, LEASES, key, commit.lease) if commit.lease else None,
        control=await _put(db, CONTROLS, key, commit.control) if commit.control else None,
    )


def _unchanged(key: SessionKey, commit: Commit, standing: Standing) -> None:
    pairs = {
        "head": (commit.head, standing.head),
        "lease": (commit.lease, standing.lease),
        "control": (commit.control, standing.control),
    }
    for name, (wanted, stored) in pairs.items():
        if wanted and wanted.version != (stored.version if stored else None):
            raise Conflict(f"session {key.session}: the {name} has changed since it was read")


async def _write_turn(db: Connection, key: SessionKey, commit: Commit) -> None:
    if commit.turn is None:
        return
    if commit.new_turn and await db.execute_fetchall(_FIND_TURN, (*key, commit.turn.turn)):
        raise Conflict(f"session {key.session}: turn {commit.turn.turn} exists")
    await db.execute_fetchall(_REPLACE_TURN, rows.turn_row(key, commit.turn))


async def _standing(db: Connection, key: SessionKey, privates: Iterable[Private]) -> None:
    for private in privates:
        if private.stands and not await db.execute_fetchall(_FIND_PRIVATE, (*key, private.turn, private.name)):
            raise Conflict(f"session {key.session}: there is no {private.name} any more")


async def _write_private(db: Connection, key: SessionKey, private: Private) -> None:
    turn, name, text, expires_at, _ = private
    if text is None:
        await db.execute_fetchall(f"DELETE FROM privates {_WHERE} AND turn = ? AND name = ?", (*key, turn, name))
    else:
        await db.execute_fetchall(_REPLACE_PRIVATE, (*key, turn, name, text, expires_at))


def _repeated(commit: Commit, standing: Standing) -> Commit:
    """The answer to a commit that was stored before. What was changed since gets a version that fits nothing."""
    return replace(
        commit,
        head=_version(commit.head, standing.head),
        lease=_version(commit.lease, standing.lease),
        control=_version(commit.control, standing.control),
    )


def _version(written: Document | None, stored: Document | None) -> Document | None:
    if written is None:
        return None
    return replace(written, version=stored.version if stored and stored == written else _STALE)


async def purge_session(db: Connection, key: SessionKey, tombstone: Head) -> None:
    await db.execute_fetchall(f"DELETE FROM segments {_WHERE} AND epoch < ?", (*key, tombstone.epoch))
    await db.execute_fetchall(f"DELETE FROM turns {_WHERE} AND first <= ?", (*key, tombstone.seq))
    await db.execute_fetchall(f"DELETE FROM leases {_WHERE} AND epoch <= ?", (*key, tombstone.epoch))
    await db.execute_fetchall(f"DELETE FROM controls {_WHERE} AND cancels = '{{}}' AND decisions = '{{}}'", key)
    await db.execute_fetchall(f"DELETE FROM privates {_WHERE} AND after_head < ?", (*key, tombstone.version))


async def purge_expired(db: Connection, now: int) -> bool:
    """Deletes a bounded number of expired rows; True when there may be more.

    The segments beyond a head's `seq` stay until the head goes: without them a position would be handed out twice.
    """
    full = False
    for statement in _PURGES:
        deleted = await db.execute(statement, (now, PURGE_ROWS))
        full = full or deleted.rowcount >= PURGE_ROWS
        await deleted.close()
    return full


async def nothing(db: Connection) -> None:
    """The write that changes nothing: it shows that the file can be written."""


async def _nonce(db: Connection, key: SessionKey, segment: Segment) -> str | None:
    found = list(await db.execute_fetchall(_NONCE, (*key, segment.first)))
    return found[0][0] if found else None


def select(table: Table[Any]) -> str:
    return f"SELECT version, {table.columns} FROM {table.name} WHERE uid = ? AND session = ?"


async def _stored(db: Connection, table: Table[Document], key: SessionKey) -> Document | None:
    found = list(await db.execute_fetchall(select(table), key))
    return table.of(tuple(found[0])) if found else None


async def _put(db: Connection, table: Table[Document], key: SessionKey, document: Document) -> Document:
    row = (*key, *table.row(document))
    marks = ", ".join("?" * len(row))
    inserted = await db.execute_insert(
        f"INSERT OR REPLACE INTO {table.name} (uid, session, {table.columns}) VALUES ({marks})", row
    )
    assert inserted is not None
    return replace(document, version=inserted[0])


_WHERE: Final = "WHERE uid = ? AND session = ?"
_INSERT_SEGMENT: Final = f"INSERT OR IGNORE INTO segments (uid, session, {rows.SEGMENT}) VALUES (?,?,?,?,?,?,?,?,?)"
_NONCE: Final = f'SELECT "commit" FROM segments {_WHERE} AND first = ?'
_FIND_TURN: Final = f"SELECT 1 FROM turns {_WHERE} AND turn = ?"
_TURN_MARKS: Final = ", ".join("?" for _ in f"uid, session, {rows.TURN}".split(","))
_REPLACE_TURN: Final = f"INSERT OR REPLACE INTO turns (uid, session, {rows.TURN}) VALUES ({_TURN_MARKS})"
_FIND_PRIVATE: Final = f"SELECT 1 FROM privates {_WHERE} AND turn = ? AND name = ?"
_REPLACE_PRIVATE: Final = """
    INSERT OR REPLACE INTO privates (uid, session, turn, name, text, expires_at, after_head)
    VALUES (?, ?, ?, ?, ?, ?, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'heads'), 0))"""
"""`after_head`, the newest version of any head at that moment, tells what was written before a tombstone."""
_PURGES: Final = (
    """DELETE FROM leases WHERE version IN (SELECT l.version FROM heads h JOIN leases l
        ON l.uid = h.uid AND l.session = h.session WHERE h.expires_at <= ? LIMIT ?)""",
    """DELETE FROM heads WHERE version IN (SELECT version FROM heads h WHERE expires_at <= ? AND NOT EXISTS (
        SELECT 1 FROM leases l WHERE l.uid = h.uid AND l.session = h.session) LIMIT ?)""",
    """DELETE FROM segments WHERE number IN (SELECT number FROM segments s WHERE expires_at <= ? AND NOT EXISTS (
        SELECT 1 FROM heads h WHERE h.uid = s.uid AND h.session = s.session AND h.seq < s.last) LIMIT ?)""",
    "DELETE FROM turns WHERE rowid IN (SELECT rowid FROM turns WHERE expires_at <= ? LIMIT ?)",
    "DELETE FROM controls WHERE version IN (SELECT version FROM controls WHERE expires_at <= ? LIMIT ?)",
    "DELETE FROM privates WHERE rowid IN (SELECT rowid FROM privates WHERE expires_at <= ? LIMIT ?)",
)
