"""The journal: what every store keeps and promises. The stores are `firestore` and `sqlite`.

Rules of this port:
- A segment is written once, with a create-only precondition on its position (`first`). Whoever creates `head + 1`
  owns that position; this is the lease check, and it is part of the write itself.
- Every write carries a nonce (`commit`). A write whose answer was lost is repeated byte for byte; the store then reads
  the position back and compares: mine is success, anything else is `LeaseLost` (append, renew) or `Conflict` (commit).
- No store retries, waits or reads a clock on its own account: one call is one attempt. It raises `JournalUnavailable`
  when the outcome is unknown, `JournalRejected` when repeating cannot help.
- Times are milliseconds since 1970 and come from the caller.
- A reader is never given a document that has expired; a hole is visible as segments that do not join.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from legato.events import ID_PATTERN, Record, join, split
from legato.turn import Status, ToolState

SEGMENT_BYTES = 900 * 1024
"""A segment stays under this, but for a larger event and events that must be durable together: the store that needs it
splits that into parts."""
COMMIT_BYTES = 3 * 1024 * 1024
"""A Commit of more is rejected: what goes into one has to be bounded before."""
PAGE = 1000
READ_BYTES = 8 * 1024 * 1024
"""A read ends with the segment that takes it past this, however many were asked for."""


class SessionKey(NamedTuple):
    """Where a session lives: below its principal. Ids of different principals never meet."""

    uid: str
    session: str


Version = Any
"""A store's token for one stored state of a document; None means "does not exist". Compared by the store alone."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive events committed together. `events` is JSON array text, one event a line (`events.join`)."""

    first: int
    last: int
    epoch: int
    turn: str
    commit: str
    events: str
    expires_at: int

    @classmethod
    def of(cls, records: Sequence[Record], commit: str, expires_at: int) -> Segment:
        head, tail = records[0], records[-1]
        return cls(head.seq, tail.seq, head.epoch, head.turn, commit, join(records), expires_at)

    def records(self) -> list[Record]:
        return split(self.events)


class Page:
    """What one read gives: `limit` segments at most, none behind the one that takes it past READ_BYTES."""

    def __init__(self, limit: int) -> None:
        self.segments: list[Segment] = []
        self._limit, self._room = limit, READ_BYTES

    @property
    def full(self) -> bool:
        return len(self.segments) >= self._limit or self._room < 0

    def add(self, segments: Iterable[Segment]) -> None:
        """Takes those that there is room for."""
        for segment in segments:
            if self.full:
                return
            self.segments.append(segment)
            self._room -= len(segment.events.encode())


def fill(segments: Sequence[Segment], limit: int = PAGE) -> bool:
    """These are as many as a page takes: there may be more."""
    page = Page(limit)
    page.add(segments)
    return page.full


class ActiveTurn(NamedTuple):
    id: str
    status: Status


@dataclass(frozen=True, slots=True)
class Head:
    """`users/{uid}/agent_sessions/{session}`: `epoch` is the last one handed out, `seq` the head at the last rest."""

    epoch: int
    seq: int
    turn: ActiveTurn | None
    created_at: int
    updated_at: int
    expires_at: int
    deleted: bool = False
    version: Version = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append. Released: `expires_at` is 0. Epochs are compared, never owners' names.

    `owner`: the instance that counts as lost when this runs out. Empty once it ends by itself and leaves that to a tool
    that may not be stopped.
    `sweep_at`: when a sweeper looks whether this turn was left alone (None: never). Renewals leave it as it is.
    """

    epoch: int
    owner: str
    turn: str
    attempts: int
    expires_at: int
    commit: str
    sweep_at: int | None = field(default=None, kw_only=True)
    version: Version = field(default=None, compare=False)


class Cancel(NamedTuple):
    """Somebody's wish that a turn should end: `by` is a uid."""

    reason: str
    by: str
    at: int


class Decision(NamedTuple):
    """The answer to a question: `by` is a uid, or what answered in a person's place (`expiry`, `reconcile`)."""

    approved: bool
    by: str
    note: str | None
    at: int


@dataclass(frozen=True, slots=True)
class Control:
    """What outsiders ask of the owner. Every entry is keyed by the turn it means, a decision also by its request."""

    cancels: Mapping[str, Cancel]
    decisions: Mapping[str, Mapping[str, Decision]] = field(default_factory=dict, kw_only=True)
    expires_at: int
    version: Version = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn as it is listed and shown later. `output` exists only when it completed, else `partial`."""

    turn: str
    status: Status
    agent: str
    input: Any
    first: int
    started_at: int
    expires_at: int
    last: int | None = None
    ended_at: int | None = None
    output: str | None = None
    partial: str | None = None
    tools: tuple[ToolState, ...] = ()
    error: Mapping[str, Any] | None = None
    usage: Mapping[str, int] | None = None
    finish_reason: str | None = None
    retry_of: str | None = None


class Private(NamedTuple):
    """What only the turn's owner reads: a step's result, a checkpoint. `name` is any text, unique within its turn."""

    turn: str
    name: str
    text: str | None
    """JSON text; None deletes what is stored."""
    expires_at: int
    stands: bool = False
    """Only what stands there already is replaced: else the Commit is a Conflict."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Several documents written together or not at all.

    `segment` is create-only. `head`, `lease` and `control` are written whole where their stored version is still the
    `version` they carry (None: where there is no such document). `turn` is created when `new_turn`, else replaced.
    `private` replaces or deletes whatever is stored under its names, unless it `stands`.
    """

    segment: Segment | None = None
    head: Head | None = None
    lease: Lease | None = None
    control: Control | None = None
    turn: TurnRecord | None = None
    new_turn: bool = False
    private: tuple[Private, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a session stands: its documents; `last` is the newest segment's last seq, expired or not (0: none)."""

    head: Head | None
    lease: Lease | None
    control: Control | None
    last: int

    @property
    def seq(self) -> int:
        """The head of the journal. It counts expired segments, so that a position is never handed out twice."""
        return max(self.head.seq if self.head else 0, self.last)

    @property
    def epoch(self) -> int:
        return max(self.head.epoch if self.head else 0, self.lease.epoch if self.lease else 0)

    def owned(self, now: int) -> bool:
        """A lease is live: nobody may take the session over yet."""
        return self.lease is not None and self.lease.expires_at > now


class Place(NamedTuple):
    """Where in the list of a principal's sessions one stands; written `"{updated_at}-{session}"`, opaque to clients."""

    updated_at: int
    session: str

    def __str__(self) -> str:
        return f"{self.updated_at}-{self.session}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """None when `text` is no place."""
        found = re.fullmatch(rf"([0-9]{{1,16}})-({ID_PATTERN})", text, re.ASCII)
        return cls(int(found[1]), found[2]) if found else None


class SessionItem(NamedTuple):
    session: str
    head: Head

    @property
    def place(self) -> Place:
        return Place(self.head.updated_at, self.session)


class Journal(Protocol):
    """One store of sessions. Every method is one attempt; see the rules above for what it raises."""

    async def append(self, key: SessionKey, segment: Segment) -> None:
        """Creates one segment, grouped with appends of other sessions. Raises LeaseLost when the position is taken."""

    async def renew(self, key: SessionKey, lease: Lease) -> Lease:
        """Replaces the lease, but for its `sweep_at`, where it still has `lease.version`; gives it back with its new
        version. Raises LeaseLost when the stored lease is of another epoch, Conflict when it is of this one but another
        version."""

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        """Writes all of `commit` atomically; gives it back with the new versions. Raises Conflict, nothing written,
        when any precondition fails (and the segment standing at the position does not carry this commit's nonce)."""

    async def standing(self, key: SessionKey, *, trust_head: bool = False) -> Standing:
        """Head, lease, control and the newest position, side by side: `last` may be newer than the documents.

        With `trust_head` a store may leave `last` 0 where no turn is active: the head has the position then, but for
        what a late owner of a deleted session may have left beyond it. A Commit there is a Conflict; ask again without.
        """

    async def lease(self, key: SessionKey) -> Lease | None:
        """Who may append; one read."""

    async def control(self, key: SessionKey) -> Control | None:
        """What outsiders ask; one read."""

    async def read(self, key: SessionKey, since: int, now: int, limit: int = PAGE) -> list[Segment]:
        """Unexpired, whole segments whose last event is at or after `since`, in order: as many as a `Page` takes. One
        that is not full says that there were no more."""

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        """The unexpired private texts of one turn by name, all of one moment."""

    async def turn(self, key: SessionKey, turn: str) -> TurnRecord | None: ...

    async def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        """The newest `limit` turns whose `first` is below `before`, oldest of them first."""

    async def sessions(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        """The principal's sessions, not deleted, by falling `Place`, those below `before`."""

    async def orphans(self, now: int, limit: int) -> list[SessionKey]:
        """At most `limit` sessions of all principals whose `sweep_at` has come and whose lease is not live, those that
        were due first leading."""

    async def purge(self, key: SessionKey, tombstone: Head) -> None:
        """Deletes what was there when `tombstone` became the head: segments of epochs before its own, turns begun at or
        before its seq, a lease of no later epoch, a control that asks for nothing, private texts written before it.

        What has begun since stays, and so does the tombstone's own segment, the fence that a late owner runs into.
        Safe to repeat."""

    async def wait(self, key: SessionKey, after: int, head: Version, timeout: float) -> bool:
        """Returns True when there may be news of this session beyond seq `after`, or a head other than the one of
        version `head`; False after `timeout` seconds. A wake-up, never the truth: read to see."""

    async def wait_control(self, key: SessionKey, known: Version, timeout: float) -> bool:
        """Returns True when the control may be another than the one of version `known`; False after `timeout`
        seconds."""

    async def check(self) -> None:
        """Returns when the store answers. Raises JournalUnavailable or JournalRejected with what is wrong."""

    async def close(self) -> None:
        """Ends what runs in the background; pending appends are written first."""
