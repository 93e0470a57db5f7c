"""The store of a simulated world: what the journal's port promises, in memory. Every method is one atomic step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from legato.errors import Conflict, JournalRejected, LeaseLost
from legato.journal import (
    COMMIT_BYTES,
    Commit,
    Control,
    Head,
    Lease,
    Page,
    Place,
    Private,
    Segment,
    SessionItem,
    SessionKey,
    Standing,
    TurnRecord,
)
from legato.journal.wakeups import Marks

Document = TypeVar("Document", Head, Lease, Control)
STALE = 0
"""A version that no document ever has."""


@dataclass
class Session:
    """All documents of one session."""

    head: Head | None = None
    lease: Lease | None = None
    control: Control | None = None
    segments: dict[int, Segment] = field(default_factory=dict)
    turns: dict[str, TurnRecord] = field(default_factory=dict)
    private: dict[tuple[str, str], tuple[Private, int]] = field(default_factory=dict)
    """By turn and name, with the version that came last before it."""

    @property
    def last(self) -> int:
        return self.segments[max(self.segments)].last if self.segments else 0


class Store:
    """`written` is told of every segment as it is created, `changed` of a session after each write to it."""

    def __init__(
        self, written: Callable[[SessionKey, Segment], None], changed: Callable[[SessionKey, Marks], None]
    ) -> None:
        self.sessions: dict[SessionKey, Session] = {}
        self._written = written
        self._changed = changed
        self._newest = 0

    def of(self, key: SessionKey) -> Session:
        return self.sessions.setdefault(key, Session())

    # Writing.

    def append(self, key: SessionKey, segment: Segment) -> None:
        _fits(segment.events)
        held = self.of(key).segments.get(segment.first)
        if held is None:
            self._keep(key, segment)
            self._changed(key, self.marks(key))
        elif held.commit != segment.commit:
            raise LeaseLost(f"position {segment.first} was taken by another owner")

    def renew(self, key: SessionKey, lease: Lease) -> Lease:
        session = self.of(key)
        stored = session.lease
        if stored is None or stored.epoch != lease.epoch:
            raise LeaseLost(f"epoch {lease.epoch} is over")
        renewed = replace(lease, sweep_at=stored.sweep_at)
        if stored != renewed:
            if stored.version != lease.version:
                raise Conflict("the lease has changed since it was read")
            stored = session.lease = self._stamped(renewed)
            self._changed(key, self.marks(key))
        return replace(lease, version=stored.version)

    def commit(self, key: SessionKey, commit: Commit) -> Commit:
        _fits(commit.segment.events if commit.segment else "", *_texts(commit))
        session = self.of(key)
        held = session.segments.get(commit.segment.first) if commit.segment else None
        if commit.segment and held and held.commit == commit.segment.commit:
            return _repeated(commit, session)
        if held:
            raise Conflict("its next position is taken")
        _unchanged(commit, session)
        if any(private.stands and (private.turn, private.name) not in session.private for private in commit.private):
            raise Conflict("what it replaces is not there any more")
        if commit.segment:
            self._keep(key, commit.segment)
        if commit.turn:
            session.turns[commit.turn.turn] = commit.turn
        self._keep_private(session, commit.private)
        written = replace(
            commit,
            head=commit.head and self._stamped(commit.head),
            lease=commit.lease and self._stamped(commit.lease),
            control=commit.control and self._stamped(commit.control),
        )
        session.head = written.head or session.head
        session.lease = written.lease or session.lease
        session.control = written.control or session.control
        self._changed(key, self.marks(key))
        return written

    def purge(self, key: SessionKey, tombstone: Head) -> None:
        session = self.of(key)
        kept = {first: segment for first, segment in session.segments.items() if segment.epoch >= tombstone.epoch}
        session.segments = kept
        session.turns = {name: turn for name, turn in session.turns.items() if turn.first > tombstone.seq}
        if session.lease and session.lease.epoch <= tombstone.epoch:
            session.lease = None
        if session.control and not session.control.cancels and not session.control.decisions:
            session.control = None
        old = [name for name, (_, version) in session.private.items() if version < tombstone.version]
        for name in old:
            del session.private[name]

    def expire(self, now: int, chosen: Callable[[], bool]) -> None:
        """What a TTL policy does: deletes documents that have expired, in no order and not all at once."""
        for session in self.sessions.values():
            gone = [first for first, s in session.segments.items() if s.expires_at <= now and chosen()]
            for first in gone:
                del session.segments[first]

    # Reading.

    def documents(self, key: SessionKey) -> Standing:
        session = self.of(key)
        return Standing(session.head, session.lease, session.control, 0)

    def seq(self, key: SessionKey) -> int:
        """The head of the journal."""
        session = self.of(key)
        return max(session.last, session.head.seq if session.head else 0)

    def marks(self, key: SessionKey) -> Marks:
        """How far it has come, for those who wait."""
        session = self.of(key)
        head, control = session.head, session.control
        return Marks(session.last, head.version if head else 0, control.version if control else 0)

    def last(self, key: SessionKey) -> int:
        return self.of(key).last

    def control(self, key: SessionKey) -> Control | None:
        return self.of(key).control

    def read(self, key: SessionKey, since: int, now: int, limit: int) -> list[Segment]:
        page = Page(limit)
        segments = sorted(self.of(key).segments.items())
        page.add(s for _, s in segments if s.last >= since and s.expires_at > now)
        return page.segments

    def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        kept = (private for private, _ in self.of(key).private.values() if private.turn == turn)
        return {private.name: private.text for private in kept if private.expires_at > now and private.text is not None}

    def orphans(self, now: int, limit: int) -> list[SessionKey]:
        leases = [(key, session.lease) for key, session in self.sessions.items() if session.lease]
        due = [
            (s.sweep_at, key) for key, s in leases if s.sweep_at is not None and max(s.sweep_at, s.expires_at) <= now
        ]
        return [key for _, key in sorted(due)[:limit]]

    def turn(self, key: SessionKey, turn: str) -> TurnRecord | None:
        return self.of(key).turns.get(turn)

    def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        found = [turn for turn in self.of(key).turns.values() if before is None or turn.first < before]
        return sorted(found, key=lambda turn: turn.first)[-limit:]

    def list(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        items = [SessionItem(k.session, s.head) for k, s in self.sessions.items() if k.uid == uid and s.head]
        found = [i for i in items if not i.head.deleted and (before is None or i.place < before)]
        return sorted(found, key=lambda item: item.place, reverse=True)[:limit]

    def _keep(self, key: SessionKey, segment: Segment) -> None:
        self.of(key).segments[segment.first] = segment
        self._written(key, segment)

    def _keep_private(self, session: Session, privates: Iterable[Private]) -> None:
        for private in privates:
            session.private.pop((private.turn, private.name), None)
            if private.text is not None:
                session.private[private.turn, private.name] = private, self._newest

    def _stamped(self, document: Document) -> Document:
        self._newest += 1
        return replace(document, version=self._newest)


def _unchanged(commit: Commit, session: Session) -> None:
    for name in ("head", "lease", "control"):
        wanted, stored = getattr(commit, name), getattr(session, name)
        if wanted and wanted.version != (stored.version if stored else None):
            raise Conflict(f"the {name} has changed since it was read")
    if commit.turn and commit.new_turn and commit.turn.turn in session.turns:
        raise Conflict(f"turn {commit.turn.turn} exists")


def _repeated(commit: Commit, session: Session) -> Commit:
    """The answer to a commit that was stored before. What was changed since gets a version that fits nothing."""
    return replace(
        commit,
        head=_as_stored(commit.head, session.head),
        lease=_as_stored(commit.lease, session.lease),
        control=_as_stored(commit.control, session.control),
    )


def _as_stored(written: Document | None, stored: Document | None) -> Document | None:
    if written is None:
        return None
    return replace(written, version=stored.version if stored and stored == written else STALE)


def _texts(commit: Commit) -> Iterator[str]:
    """What is measured of a commit besides its segment."""
    if commit.turn:
        yield from (text for text in (commit.turn.output, commit.turn.partial) if text)
    for private in commit.private:
        yield from (private.name, private.text or "")


def _fits(*texts: str) -> None:
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise JournalRejected(f"not UTF-8: {error}") from None
    if size > COMMIT_BYTES:
        raise JournalRejected(f"{size} bytes are over the limit of {COMMIT_BYTES}")
