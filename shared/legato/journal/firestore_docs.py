"""Documents and values: the fields each value has in Firestore, and the way back. Pure; knows nothing of RPCs.

Rules of this file:
- A document is a plain dict of Python values, as Google's client takes and gives it. A field that is None is left out.
- `expire_at` is a Timestamp, for only that has a TTL policy. Every other time is an integer of milliseconds.
- Paths are relative: a session's to the database's documents, all others to their session.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote

from pydantic import TypeAdapter

from legato.journal import (
    SEGMENT_BYTES,
    ActiveTurn,
    Cancel,
    Commit,
    Control,
    Decision,
    Head,
    Lease,
    Private,
    Segment,
    SessionKey,
    TurnRecord,
    Version,
)
from legato.turn import ToolState

Fields = dict[str, Any]

HEAD: Final = ""
LEASE: Final = "lease/current"
CONTROL: Final = "control/current"
FORMAT: Final = 1
AGE: Final = ("epoch", "first", "cancel", "decisions")
"""The fields that `outlived` looks at."""
SWEEP: Final = ("sweep_at", "sweep_shard")
SHARDS: Final = 8
"""All sessions write `sweep_at`, and an index takes some 500 writes a second of a value that only grows."""
PRIVATE_PARTS: Final = 4
"""A private text that a Commit has room for is in no more documents than these."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TOOLS: Final[TypeAdapter[tuple[ToolState, ...]]] = TypeAdapter(tuple[ToolState, ...])
_NOT_IN_AN_ID: Final = re.compile(r"[%/\x00-\x1f\x7f\ud800-\udfff]|\A\.(?=\.?\Z)|\A_(?=_.*__\Z)", re.DOTALL)


def document_id(name: str) -> str:
    """`name` as a document id: what an id may not hold is percent-encoded, and all else stays as it is.

    Source: https://firebase.google.com/docs/firestore/quotas#collections_documents_and_fields
    """
    return _NOT_IN_AN_ID.sub(_percent, name)


def _percent(found: re.Match[str]) -> str:
    return quote(found[0], safe="", errors="surrogatepass") if found[0] not in "._" else f"%{ord(found[0]):02X}"


def principal_path(uid: str) -> str:
    return f"users/{document_id(uid)}"


def session_path(key: SessionKey) -> str:
    return f"{principal_path(key.uid)}/agent_sessions/{document_id(key.session)}"


def key_of(path: str) -> SessionKey:
    """Whose a path is that begins with a session's."""
    _, uid, _, session, *_ = path.split("/")
    return SessionKey(*(unquote(name, errors="surrogatepass") for name in (uid, session)))


def segment_path(first: int, part: int = 0) -> str:
    return f"journal/{first:012d}.{part}" if part else f"journal/{first:012d}"


def turn_path(turn: str) -> str:
    return f"turns/{document_id(turn)}"


def private_path(private: Private, part: int = 0) -> str:
    """No name reads like another's part: `%` is encoded, so an encoded name never has one before a `.`."""
    path = f"private/{document_id(f'{private.turn}.{private.name}')}"
    return f"{path}%.{part}" if part else path


def private_range(turn: str) -> tuple[str, str]:
    """The first path that the private documents of `turn` can have, and one behind the last: `0` comes two after `.`,
    and `/`, which is between them, is in no id."""
    return f"private/{turn}.", f"private/{turn}0"


def timestamp(ms: int) -> datetime:
    return _EPOCH + ms * _MILLISECOND


def milliseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MILLISECOND


def segment_documents(segment: Segment) -> dict[str, Fields]:
    """The segment's documents by path: one, or its parts when `events` is more than SEGMENT_BYTES of UTF-8."""
    pieces = cut(segment.events, SEGMENT_BYTES)
    if len(pieces) == 1:
        return {segment_path(segment.first): _segment_fields(segment, pieces[0])}
    return {
        segment_path(segment.first, part): {**_segment_fields(segment, piece), "part": part, "parts": len(pieces)}
        for part, piece in enumerate(pieces)
    }


def _segment_fields(segment: Segment, events: str) -> Fields:
    return {
        "first": segment.first,
        "last": segment.last,
        "epoch": segment.epoch,
        "turn": segment.turn,
        "commit": segment.commit,
        "version": FORMAT,
        "events": events,
        "expire_at": timestamp(segment.expires_at),
    }


def cut(text: str, limit: int) -> list[str]:
    """`text` in pieces of at most `limit` bytes of UTF-8, cut between characters. Raises UnicodeEncodeError."""
    if len(text) * 4 <= limit:
        return [text]
    data, start, pieces = text.encode(), 0, []
    while len(data) - start > limit:
        end = start + limit
        while data[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(data[start:end].decode())
        start = end
    return [*pieces, data[start:].decode()]


def assemble(documents: Iterable[Fields], now: int) -> list[Segment]:
    """Segments in order of their first seq; an expired one, and one whose parts are not all there, is left out."""
    found: dict[tuple[int, str], list[Fields]] = {}
    for fields in documents:
        if milliseconds(fields["expire_at"]) > now:
            found.setdefault((fields["first"], fields["commit"]), []).append(fields)
    return [_segment_of(parts) for _, parts in sorted(found.items()) if _whole(parts)]


def _whole(parts: list[Fields]) -> bool:
    return bool(len(parts) == parts[0].get("parts", 1))


def _joined(parts: list[Fields], field: str) -> str:
    return "".join(part[field] for part in sorted(parts, key=lambda part: part.get("part", 0)))


def _segment_of(parts: list[Fields]) -> Segment:
    f, events = parts[0], _joined(parts, "events")
    return Segment(
        f["first"], f["last"], f["epoch"], f["turn"], f["commit"], events, expires_at=milliseconds(f["expire_at"])
    )


def private_documents(private: Private) -> dict[str, Fields | None]:
    """The documents by path; None: to be deleted. One in several parts carries what tells its text from any other."""
    if private.text is None:
        return {private_path(private, part): None for part in range(PRIVATE_PARTS)}
    fields = {"turn": private.turn, "name": private.name, "expire_at": timestamp(private.expires_at)}
    pieces = cut(private.text, SEGMENT_BYTES)
    if len(pieces) == 1:
        return {private_path(private): {**fields, "text": private.text}}
    fields |= {"parts": len(pieces), "digest": sha256(private.text.encode()).hexdigest()}
    return {private_path(private, part): {**fields, "part": part, "text": piece} for part, piece in enumerate(pieces)}


def private_texts(documents: Iterable[Fields], now: int) -> dict[str, str]:
    """Texts by name. What a longer text of the same name left behind lacks its first part, and is left out."""
    found: dict[tuple[str, str | None], list[Fields]] = {}
    for fields in documents:
        if milliseconds(fields["expire_at"]) > now:
            found.setdefault((fields["name"], fields.get("digest")), []).append(fields)
    return {name: _joined(parts, "text") for (name, _), parts in found.items() if _whole(parts)}


def head_fields(head: Head) -> Fields:
    return {
        "epoch": head.epoch,
        "seq": head.seq,
        "turn": head.turn._asdict() if head.turn else None,
        "created_at": head.created_at,
        "updated_at": head.updated_at,
        "expire_at": timestamp(head.expires_at),
        **({"deleted": True} if head.deleted else {}),
    }


def head_of(f: Fields, version: Version = None) -> Head:
    return Head(
        epoch=f["epoch"],
        seq=f["seq"],
        turn=ActiveTurn(f["turn"]["id"], f["turn"]["status"]) if f["turn"] else None,
        created_at=f["created_at"],
        updated_at=f["updated_at"],
        expires_at=milliseconds(f["expire_at"]),
        deleted=f.get("deleted", False),
        version=version,
    )


def lease_fields(lease: Lease, head: Head | None = None) -> Fields:
    """`expires_at` is the lease's end; `expire_at`, when the document may go, is the head's that is written with it."""
    return {
        "epoch": lease.epoch,
        "owner": lease.owner,
        "turn": lease.turn,
        "attempts": lease.attempts,
        "expires_at": lease.expires_at,
        "commit": lease.commit,
        **({"expire_at": timestamp(head.expires_at)} if head else {}),
    }


def sweep_fields(key: SessionKey, lease: Lease) -> Fields:
    """What a sweeper finds a lease by: all of SWEEP or nothing."""
    if lease.sweep_at is None:
        return {}
    return {"sweep_at": lease.sweep_at, "sweep_shard": zlib.crc32(session_path(key).encode()) % SHARDS}


def lease_of(f: Fields, version: Version = None) -> Lease:
    fixed = f["epoch"], f["owner"], f["turn"], f["attempts"], f["expires_at"], f["commit"]
    return Lease(*fixed, version, sweep_at=f.get("sweep_at"))


def control_fields(control: Control) -> Fields:
    return {
        "cancel": {turn: cancel._asdict() for turn, cancel in control.cancels.items()},
        "decisions": {
            turn: {request: decision._asdict() for request, decision in requests.items()}
            for turn, requests in control.decisions.items()
        },
        "expire_at": timestamp(control.expires_at),
    }


def control_of(f: Fields, version: Version = None) -> Control:
    cancels = {turn: Cancel(**cancel) for turn, cancel in f["cancel"].items()}
    decisions = {
        turn: {request: Decision(**decision) for request, decision in requests.items()}
        for turn, requests in f["decisions"].items()
    }
    return Control(cancels, milliseconds(f["expire_at"]), version, decisions=decisions)


def turn_fields(record: TurnRecord) -> Fields:
    """`input` and `tools` are JSON text, so that any JSON fits; the rest are native fields."""
    fields = {
        "turn": record.turn,
        "status": record.status,
        "agent": record.agent,
        "input": json.dumps(record.input, ensure_ascii=False, separators=(",", ":")),
        "first": record.first,
        "last": record.last,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "output": record.output,
        "partial": record.partial,
        "tools": _TOOLS.dump_json(record.tools).decode() if record.tools else None,
        "error": _plain(record.error),
        "usage": _plain(record.usage),
        "finish_reason": record.finish_reason,
        "retry_of": record.retry_of,
        "expire_at": timestamp(record.expires_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def turn_of(f: Fields) -> TurnRecord:
    return TurnRecord(
        turn=f["turn"],
        status=f["status"],
        agent=f["agent"],
        input=json.loads(f["input"]),
        first=f["first"],
        started_at=f["started_at"],
        expires_at=milliseconds(f["expire_at"]),
        last=f.get("last"),
        ended_at=f.get("ended_at"),
        output=f.get("output"),
        partial=f.get("partial"),
        tools=_TOOLS.validate_json(f["tools"]) if "tools" in f else (),
        error=f.get("error"),
        usage=f.get("usage"),
        finish_reason=f.get("finish_reason"),
        retry_of=f.get("retry_of"),
    )


def outlived(path: str, f: Fields, version: Version, tombstone: Head) -> bool:
    """The document below a session was there when `tombstone` became its head, and is not the tombstone's fence."""
    match path.partition("/")[0]:
        case "journal":
            return bool(f["epoch"] < tombstone.epoch)
        case "turns":
            return bool(f["first"] <= tombstone.seq)
        case "lease":
            return bool(f["epoch"] <= tombstone.epoch)
        case "control":
            return not f["cancel"] and not f["decisions"]
    return bool(version <= tombstone.version)


def _plain(mapping: Mapping[str, Any] | None) -> Fields | None:
    return None if mapping is None else dict(mapping)


def stamped(commit: Commit, versions: Mapping[str, Version]) -> Commit:
    """The commit with the new versions of its documents, which `versions` has by path."""
    return replace(
        commit,
        head=replace(commit.head, version=versions[HEAD]) if commit.head else None,
        lease=replace(commit.lease, version=versions[LEASE]) if commit.lease else None,
        control=replace(commit.control, version=versions[CONTROL]) if commit.control else None,
    )
