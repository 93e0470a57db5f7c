"""Segments, leases and commits as the tests of the journal need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from legato.events import Event, Payload, Record, TextDelta, TurnCompleted, TurnFailed, TurnStarted
from legato.journal import (
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
    Standing,
    TurnRecord,
    Version,
)

NOW = 1_796_050_000_000
HOUR = 3_600_000
EXPIRY = NOW + 24 * HOUR
KEY = SessionKey("ann", "s1")


def clock() -> int:
    """Time that stands still at NOW."""
    return NOW


def record(seq: int, epoch: int = 1, text: str = "w", turn: str = "t1") -> Record:
    return Event(seq, epoch, turn, NOW, TextDelta(step=1, text=text)).encode()


def segment(
    first: int,
    last: int | None = None,
    *,
    epoch: int = 1,
    commit: str = "c1",
    text: str = "w",
    expires_at: int = EXPIRY,
) -> Segment:
    """Events `first` to `last`, each with `text`."""
    records = [record(seq, epoch, text) for seq in range(first, (last or first) + 1)]
    return Segment.of(records, commit, expires_at)


def fence(seq: int, epoch: int, commit: str, payload: Payload | None = None, turn: str = "t1") -> Segment:
    event = Event(seq, epoch, turn, NOW, payload or TurnStarted(input="hi", agent="demo"))
    return Segment.of([event.encode()], commit, EXPIRY)


def head(epoch: int = 1, seq: int = 0, *, turn: str | None = "t1", at: int = NOW, **changes: Any) -> Head:
    active = None if turn is None else ActiveTurn(turn, "streaming")
    return Head(epoch, seq, active, NOW, at, NOW + 720 * HOUR, **changes)


def lease(epoch: int = 1, owner: str = "a", commit: str = "c1", *, expires_at: int = 0, **changes: Any) -> Lease:
    return Lease(epoch, owner, "t1", 0, expires_at or NOW + 15_000, commit, **changes)


def control(*turns: str, version: Version = None) -> Control:
    return Control({turn: Cancel("user", "ann", NOW) for turn in turns}, EXPIRY, version)


def decided(turn: str, *requests: str, version: Version = None) -> Control:
    """What a person answered to these requests of one turn."""
    answers = {
        request: Decision(request != "no", "bob", None if n else "fine", NOW) for n, request in enumerate(requests)
    }
    return Control({}, EXPIRY, version, decisions={turn: answers})


def private(name: str, text: str | None = "{}", turn: str = "t1", expires_at: int = EXPIRY) -> Private:
    return Private(turn, name, text, expires_at)


def turn(name: str = "t1", first: int = 1, **changes: Any) -> TurnRecord:
    record = TurnRecord(name, "streaming", "demo", "hi", first, NOW, NOW + 720 * HOUR)
    return replace(record, **changes)


def start(commit: str = "c1", owner: str = "a") -> Commit:
    """The first turn of a session: its fence, head, lease and turn document."""
    return Commit(fence(1, 1, commit), head(), lease(1, owner, commit), None, turn(), new_turn=True)


def takeover(seq: int, commit: str, stored: Lease, owner: str = "b") -> Commit:
    """A fence at `seq` under the next epoch, with the lease as it was read."""
    epoch = stored.epoch + 1
    failed = TurnFailed(code="crash_loop", message="its owners are gone")
    return Commit(fence(seq, epoch, commit, failed), lease=lease(epoch, owner, commit, version=stored.version))


def handed_back(begun: Commit) -> Commit:
    """Gives the lease of a turn up that goes on."""
    assert begun.head
    assert begun.lease
    return Commit(head=begun.head, lease=replace(begun.lease, expires_at=0))


def tombstone(standing: Standing) -> Commit:
    """What deletes a session in which nothing runs."""
    assert standing.head
    asked = replace(standing.control, cancels={}, decisions={}) if standing.control else None
    moved = replace(standing.head, epoch=standing.epoch + 1, seq=standing.seq, turn=None, deleted=True)
    return Commit(head=moved, control=asked)


def finish(seq: int, commit: str, held: Lease, stored: Head) -> Commit:
    """The end of a turn at `seq`: its terminal event, the released lease, the head at rest, the turn document."""
    end = fence(seq, held.epoch, commit, TurnCompleted(text="w"))
    rest = replace(stored, epoch=held.epoch, seq=seq, turn=None)
    ended = turn(status="completed", output="w", last=seq, ended_at=NOW)
    return Commit(end, rest, replace(held, expires_at=0, commit=commit), None, ended)
