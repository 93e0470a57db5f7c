"""How the journal's documents look as SQLite rows: tables, columns and the mapping both ways. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from legato.journal import ActiveTurn, Cancel, Control, Decision, Head, Lease, Segment, SessionKey, Standing, TurnRecord
from legato.turn import ToolState

FORMAT: Final = 2
"""Kept in `PRAGMA user_version`."""

SCHEMA: Final = (
    """CREATE TABLE segments (
        number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, session TEXT NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, epoch INTEGER NOT NULL, turn TEXT NOT NULL, "commit" TEXT NOT NULL,
        expires_at INTEGER NOT NULL, events TEXT NOT NULL, UNIQUE (uid, session, first))""",
    """CREATE TABLE turns (
        uid TEXT NOT NULL, session TEXT NOT NULL, turn TEXT NOT NULL, status TEXT NOT NULL, agent TEXT NOT NULL,
        input TEXT NOT NULL, first INTEGER NOT NULL, started_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        last INTEGER, ended_at INTEGER, output TEXT, partial TEXT, tools TEXT NOT NULL, error TEXT, usage TEXT,
        finish_reason TEXT, retry_of TEXT, PRIMARY KEY (uid, session, turn))""",
    """CREATE TABLE heads (
        version INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, session TEXT NOT NULL, epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL, turn TEXT, status TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL, deleted INTEGER NOT NULL, UNIQUE (uid, session))""",
    """CREATE TABLE leases (
        version INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, session TEXT NOT NULL, epoch INTEGER NOT NULL,
        owner TEXT NOT NULL, turn TEXT NOT NULL, attempts INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        "commit" TEXT NOT NULL, sweep_at INTEGER, UNIQUE (uid, session))""",
    """CREATE TABLE controls (
        version INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, session TEXT NOT NULL, cancels TEXT NOT NULL,
        decisions TEXT NOT NULL, expires_at INTEGER NOT NULL, UNIQUE (uid, session))""",
    """CREATE TABLE privates (
        uid TEXT NOT NULL, session TEXT NOT NULL, turn TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL,
        expires_at INTEGER NOT NULL, after_head INTEGER NOT NULL, PRIMARY KEY (uid, session, turn, name))""",
    "CREATE INDEX segments_expiry ON segments (expires_at)",
    "CREATE INDEX turns_expiry ON turns (expires_at)",
    "CREATE INDEX turns_order ON turns (uid, session, first)",
    "CREATE INDEX heads_expiry ON heads (expires_at)",
    "CREATE INDEX heads_order ON heads (uid, updated_at)",
    "CREATE INDEX controls_expiry ON controls (expires_at)",
    "CREATE INDEX privates_expiry ON privates (expires_at)",
    "CREATE INDEX leases_sweep ON leases (sweep_at) WHERE sweep_at IS NOT NULL",
)

Row = Sequence[Any]
Document = TypeVar("Document", Head, Lease, Control)

SEGMENT: Final = 'first, last, epoch, turn, "commit", events, expires_at'
SEGMENTS: Final = (
    f"SELECT {SEGMENT} FROM segments WHERE uid = ? AND session = ? AND last >= ? AND expires_at > ?"
    " AND first >= coalesce((SELECT max(first) FROM segments WHERE uid = ? AND session = ? AND first <= ?), 0)"
    " ORDER BY first LIMIT ?"
)
TURN: Final = (
    "turn, status, agent, input, first, started_at, expires_at, last, ended_at, output, partial, tools, error, usage,"
    " finish_reason, retry_of"
)
_TOOLS: Final[TypeAdapter[tuple[ToolState, ...]]] = TypeAdapter(tuple[ToolState, ...])


def segment_row(key: SessionKey, segment: Segment) -> Row:
    s = segment
    return (*key, s.first, s.last, s.epoch, s.turn, s.commit, s.events, s.expires_at)


def turn_row(key: SessionKey, record: TurnRecord) -> Row:
    r = record
    texts = (_dump(_TOOLS.dump_python(r.tools, mode="json")), _dump_or_none(r.error), _dump_or_none(r.usage))
    times = (r.first, r.started_at, r.expires_at, r.last, r.ended_at)
    fixed = (*key, r.turn, r.status, r.agent, _dump(r.input))
    return (*fixed, *times, r.output, r.partial, *texts, r.finish_reason, r.retry_of)


def turn_of(row: Row) -> TurnRecord:
    turn, status, agent, asked, first, started_at, expires_at, last, ended_at, output, partial, *texts = row
    texts, (finish_reason, retry_of) = texts[:3], texts[3:]
    tools, error, usage = (None if text is None else json.loads(text) for text in texts)
    return TurnRecord(
        turn, status, agent, json.loads(asked), first, started_at, expires_at, last, ended_at, output, partial,
        _TOOLS.validate_python(tools), error, usage, finish_reason, retry_of,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table(Generic[Document]):
    """A document of which a session has one. Its `version` is the row's id: AUTOINCREMENT never hands one out twice, so
    a version read before a document was deleted does not fit the one created after it."""

    name: str
    columns: str
    row: Callable[[Document], Row]
    of: Callable[[Row], Document]


def _head_row(head: Head) -> Row:
    turn, status = head.turn or (None, None)
    return (head.epoch, head.seq, turn, status, head.created_at, head.updated_at, head.expires_at, int(head.deleted))


def _head_of(row: Row) -> Head:
    version, epoch, seq, turn, status, created_at, updated_at, expires_at, deleted = row
    active = None if turn is None else ActiveTurn(turn, status)
    return Head(epoch, seq, active, created_at, updated_at, expires_at, bool(deleted), version)


def _lease_row(lease: Lease) -> Row:
    return (lease.epoch, lease.owner, lease.turn, lease.attempts, lease.expires_at, lease.commit, lease.sweep_at)


def _lease_of(row: Row) -> Lease:
    version, epoch, owner, turn, attempts, expires_at, commit, sweep_at = row
    return Lease(epoch, owner, turn, attempts, expires_at, commit, version, sweep_at=sweep_at)


def _control_row(control: Control) -> Row:
    return (_dump(dict(control.cancels)), _dump(dict(control.decisions)), control.expires_at)


def _control_of(row: Row) -> Control:
    version, cancels, decisions, expires_at = row
    return Control(
        {turn: Cancel(*cancel) for turn, cancel in json.loads(cancels).items()},
        expires_at,
        version,
        decisions={
            turn: {request: Decision(*decision) for request, decision in requests.items()}
            for turn, requests in json.loads(decisions).items()
        },
    )


HEADS: Final = Table(
    "heads", "epoch, seq, turn, status, created_at, updated_at, expires_at, deleted", _head_row, _head_of
)
LEASES: Final = Table("leases", 'epoch, owner, turn, attempts, expires_at, "commit", sweep_at', _lease_row, _lease_of)
CONTROLS: Final = Table("controls", "cancels, decisions, expires_at", _control_row, _control_of)


def _qualified(table: Table[Any]) -> str:
    return ", ".join(f"{table.name}.{column}" for column in ("version", *table.columns.split(", ")))


STANDING: Final = f"""
    SELECT {_qualified(HEADS)}, {_qualified(LEASES)}, {_qualified(CONTROLS)},
        (SELECT last FROM segments s WHERE s.uid = k.uid AND s.session = k.session ORDER BY first DESC LIMIT 1)
    FROM (SELECT ? AS uid, ? AS session) k
        LEFT JOIN heads ON heads.uid = k.uid AND heads.session = k.session
        LEFT JOIN leases ON leases.uid = k.uid AND leases.session = k.session
        LEFT JOIN controls ON controls.uid = k.uid AND controls.session = k.session"""
"""One statement, so that the documents and the position are of one moment."""

NEWEST: Final = """
    SELECT (SELECT coalesce(max(version), 0) FROM heads), (SELECT coalesce(max(version), 0) FROM controls),
        (SELECT coalesce(max(number), 0) FROM segments)"""

WRITTEN: Final = """
    SELECT uid, session, seq, version, 0, 0 FROM heads WHERE version > ?
    UNION ALL SELECT uid, session, 0, 0, version, 0 FROM controls WHERE version > ?
    UNION ALL SELECT uid, session, last, 0, 0, number FROM segments WHERE number > ?"""
"""The marks of what was written since NEWEST or the last look, then a segment's number. Versions and numbers rise in
the order of the transactions and never come back."""

MARKS: Final = """
    SELECT k.uid, k.session,
        max(coalesce(h.seq, 0), coalesce((SELECT last FROM segments s WHERE s.uid = k.uid AND s.session = k.session
            ORDER BY first DESC LIMIT 1), 0)),
        coalesce(h.version, 0), coalesce(c.version, 0)
    FROM (SELECT json_extract(value, '$[0]') AS uid, json_extract(value, '$[1]') AS session FROM json_each(?)) k
        LEFT JOIN heads h ON h.uid = k.uid AND h.session = k.session
        LEFT JOIN controls c ON c.uid = k.uid AND c.session = k.session"""
"""How far the sessions `[[uid, session], ...]` are."""


def standing_of(row: Row) -> Standing:
    head, lease, control, last = row[:9], row[9:17], row[17:21], row[21]
    return Standing(
        HEADS.of(head) if head[0] is not None else None,
        LEASES.of(lease) if lease[0] is not None else None,
        CONTROLS.of(control) if control[0] is not None else None,
        last or 0,
    )


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _dump_or_none(value: Any) -> str | None:
    return None if value is None else _dump(dict(value))
