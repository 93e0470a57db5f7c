"""The journal in Cloud Firestore.

The lease check is the write: a segment's document id is its first seq, and it is created or it fails. Single-document
writes of all sessions are grouped (`grouping`); what must be atomic is one Commit; nothing uses a transaction.
Indexes: `journal` is queried by `last`, `turns` by `first`, `agent_sessions` by `updated_at`, each alone, and `lease`,
over all sessions, by `sweep_shard` and `sweep_at`; all other fields can be exempt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, TypeVar

from legato.errors import Conflict, JournalRejected, JournalUnavailable, LeaseLost
from legato.journal import (
    COMMIT_BYTES,
    PAGE,
    READ_BYTES,
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
from legato.journal import firestore_docs as docs
from legato.journal import firestore_wire as wire
from legato.journal.firestore_docs import CONTROL, HEAD, LEASE
from legato.journal.firestore_rpc import FirestoreRpc, PreconditionFailed
from legato.journal.firestore_wire import Message
from legato.journal.grouping import Grouping
from legato.journal.watch import Watch

MAX_WRITES: Final = 500
PARTS: Final = 8
"""Documents that a page is asked for beyond its limit, so that a segment in parts seldom needs a second page."""
SPACING: Final = 0.005
"""Without it 1,000 appends a second take 0.5 of a core, with it 0.2; a lone append waits for nothing."""
ORPHANS: Final = 100
"""Leases of one look for those that were left alone."""

T = TypeVar("T")
U = TypeVar("U")


class FirestoreJournal:
    """One database. `emulator` is the emulator's host:port; `timeout`, in seconds, bounds every RPC. `tick`, in
    seconds, is how often who waits is woken while nothing else would (`watch`).

    Nothing is opened before the first call, and then in the loop that makes it.
    """

    def __init__(
        self,
        project: str,
        database: str,
        *,
        emulator: str | None = None,
        timeout: float = 10,
        in_flight: int = 3,
        tick: float = 5,
    ) -> None:
        self._rpc = FirestoreRpc(project, database, emulator, timeout)
        self._watch = Watch(self._rpc, tick)
        self._writes = Grouping(
            self._rpc.batch_write, in_flight=in_flight, max_writes=MAX_WRITES, max_bytes=COMMIT_BYTES, spacing=SPACING
        )

    async def append(self, key: SessionKey, segment: Segment) -> None:
        writes = self._plan(key, Commit(segment=segment))
        try:
            if len(writes) == 1:
                await self._put(*writes.values())
            else:
                await self._rpc.commit(writes.values())
        except PreconditionFailed as taken:
            if await self._own_segment(key, segment) is None:
                raise LeaseLost(f"position {segment.first} of session {key.session} is taken ({taken})") from None

    async def renew(self, key: SessionKey, lease: Lease) -> Lease:
        name = self._name(key, LEASE)
        try:
            if lease.version is not None:
                return replace(
                    lease, version=await self._put(wire.merge(name, docs.lease_fields(lease), lease.version))
                )
        except PreconditionFailed:
            pass
        (stored,) = await self._rpc.get(name)
        return _renewed(lease, docs.lease_of(*_read(stored)) if stored else None)

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        writes = self._plan(key, commit)
        try:
            versions = dict(zip(writes, await self._rpc.commit(writes.values()), strict=True))
        except PreconditionFailed as failed:
            earlier = await self._versions_if_committed(key, commit, writes)
            if earlier is None:
                raise Conflict(f"session {key.session} has changed ({failed})") from None
            versions = earlier
        return docs.stamped(commit, versions)

    async def standing(self, key: SessionKey, *, trust_head: bool = False) -> Standing:
        if not trust_head:
            standing, last = await _both(self._documents(key), self._newest(key))
            return replace(standing, last=last)
        standing = await self._documents(key)
        active = standing.head and standing.head.turn
        return replace(standing, last=await self._newest(key)) if active else standing

    async def _documents(self, key: SessionKey) -> Standing:
        head, lease, control = await self._rpc.get(*(self._name(key, path) for path in (HEAD, LEASE, CONTROL)))
        return Standing(
            head and docs.head_of(*_read(head)),
            lease and docs.lease_of(*_read(lease)),
            control and docs.control_of(*_read(control)),
            last=0,
        )

    async def _newest(self, key: SessionKey) -> int:
        """The last seq of the newest segment. A query costs a read even where it finds nothing, and the most time."""
        newest = wire.select(self._name(key), "journal", "last", 1, descending=True, only=["last"])
        found = await self._rpc.query(newest)
        return int(found[0].fields["last"].integer_value) if found else 0

    async def lease(self, key: SessionKey) -> Lease | None:
        (found,) = await self._rpc.get(self._name(key, LEASE))
        return docs.lease_of(*_read(found)) if found else None

    async def control(self, key: SessionKey) -> Control | None:
        (found,) = await self._rpc.get(self._name(key, CONTROL))
        return docs.control_of(*_read(found)) if found else None

    async def read(self, key: SessionKey, since: int, now: int, limit: int = PAGE) -> list[Segment]:
        query = wire.select(self._name(key), "journal", "last", limit + PARTS, at_least=since)
        documents: list[docs.Fields] = []
        page = Page(limit)
        async for found in self._pages(query, READ_BYTES):
            documents += (wire.decode(document.fields) for document in found)
            page = Page(limit)
            page.add(docs.assemble(documents, now))
            if page.full:
                break
        return page.segments

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        first, end = (self._name(key, path) for path in docs.private_range(turn))
        query = wire.between(self._name(key), "private", first, end)
        found = [wire.decode(document.fields) for document in await self._rpc.query(query)]
        return docs.private_texts([fields for fields in found if fields["turn"] == turn], now)

    async def turn(self, key: SessionKey, turn: str) -> TurnRecord | None:
        (found,) = await self._rpc.get(self._name(key, docs.turn_path(turn)))
        return docs.turn_of(wire.decode(found.fields)) if found else None

    async def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        query = wire.select(self._name(key), "turns", "first", limit, descending=True, below=before)
        return [docs.turn_of(wire.decode(found.fields)) for found in reversed(await self._rpc.query(query))]

    async def sessions(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        parent = self._rpc.name(docs.principal_path(uid))
        query = wire.select(parent, "agent_sessions", "updated_at", limit, descending=True)
        if before:
            wire.start_after(query, before.updated_at, self._name(SessionKey(uid, before.session)))
        items: list[SessionItem] = []
        async for page in self._pages(query):
            found = (SessionItem(document.name.rsplit("/", 1)[1], docs.head_of(*_read(document))) for document in page)
            items += (item for item in found if not item.head.deleted)
            if len(items) >= limit:
                break
        return items[:limit]

    async def orphans(self, now: int, limit: int) -> list[SessionKey]:
        shards = await _all([self._orphans(shard, now, limit) for shard in range(docs.SHARDS)])
        found = sorted(orphan for shard in shards for orphan in shard)
        return [key for _, key in found[:limit]]

    async def _orphans(self, shard: int, now: int, limit: int) -> list[tuple[int, SessionKey]]:
        """The oldest `limit` of one shard, each with its `sweep_at`. Those that are live lie between them."""
        root = self._rpc.name()
        orphans: list[tuple[int, SessionKey]] = []
        async for page in self._pages(wire.due(root, shard, now, ORPHANS, only=["sweep_at", "expires_at"])):
            for found in page:
                fields = wire.decode(found.fields)
                if fields["expires_at"] <= now:
                    orphans.append((fields["sweep_at"], docs.key_of(found.name.removeprefix(f"{root}/"))))
            if len(orphans) >= limit:
                break
        return orphans[:limit]

    async def purge(self, key: SessionKey, tombstone: Head) -> None:
        session = self._name(key)
        async for page in self._pages(wire.descendants(session, MAX_WRITES, only=docs.AGE)):
            deletes = [
                wire.delete(found.name, wire.version(found.update_time))
                for found in page
                if docs.outlived(found.name.removeprefix(f"{session}/"), *_read(found), tombstone)
            ]
            for outcome in await self._rpc.batch_write(deletes) if deletes else ():
                if isinstance(outcome, Exception) and not isinstance(outcome, PreconditionFailed):
                    raise JournalUnavailable(f"session {key.session} is not purged yet: {outcome}")

    async def wait(self, key: SessionKey, after: int, head: Version, timeout: float) -> bool:
        return await self._watch.wait(self._name(key), wakeups.news(after, head), timeout)

    async def wait_control(self, key: SessionKey, known: Version, timeout: float) -> bool:
        return await self._watch.wait(self._name(key), wakeups.asked(known), timeout)

    async def check(self) -> None:
        await self._rpc.get(self._rpc.name("legato/check"))

    async def close(self) -> None:
        await self._watch.close()
        await self._writes.drain()
        await self._rpc.close()

    def _name(self, key: SessionKey, path: str = HEAD) -> str:
        return self._rpc.name(docs.session_path(key), path)

    async def _put(self, write: Message) -> int:
        return await self._writes.put(write.update.name, _size(write), write)

    def _plan(self, key: SessionKey, commit: Commit) -> dict[str, Message]:
        """The writes of a commit by path, the segment's first. Raises JournalRejected for what cannot be written."""
        try:
            writes = dict(self._each_write(key, commit))
        except ValueError as wrong:
            raise JournalRejected(f"a value cannot be written: {wrong}") from None
        if (size := sum(map(_size, writes.values()))) > COMMIT_BYTES:
            raise JournalRejected(f"{size} bytes at once are too many: a Commit takes {COMMIT_BYTES}")
        return writes

    def _each_write(self, key: SessionKey, commit: Commit) -> Iterator[tuple[str, Message]]:
        if commit.segment:
            for path, fields in docs.segment_documents(commit.segment).items():
                yield path, wire.replace(self._name(key, path), fields, None)
        if head := commit.head:
            yield HEAD, wire.replace(self._name(key), docs.head_fields(head), head.version)
        if lease := commit.lease:
            fields = {**docs.lease_fields(lease, commit.head), **docs.sweep_fields(key, lease)}
            yield LEASE, wire.merge(self._name(key, LEASE), fields, lease.version, without=docs.SWEEP)
        if control := commit.control:
            yield CONTROL, wire.replace(self._name(key, CONTROL), docs.control_fields(control), control.version)
        if turn := commit.turn:
            path, fields = docs.turn_path(turn.turn), docs.turn_fields(turn)
            name = self._name(key, path)
            yield path, wire.replace(name, fields, None) if commit.new_turn else wire.put(name, fields)
        yield from self._each_private(key, commit)

    def _each_private(self, key: SessionKey, commit: Commit) -> Iterator[tuple[str, Message]]:
        for private in commit.private:
            for path, fields in docs.private_documents(private).items():
                name = self._name(key, path)
                stands = private.stands and path == docs.private_path(private)
                yield path, wire.delete(name) if fields is None else wire.put(name, fields, stands=stands)

    async def _own_segment(self, key: SessionKey, segment: Segment) -> Message | None:
        """The document at the segment's position, if it carries the segment's nonce."""
        (stored,) = await self._rpc.get(self._name(key, docs.segment_path(segment.first)))
        return stored if stored and stored.fields["commit"].string_value == segment.commit else None

    async def _versions_if_committed(
        self, key: SessionKey, commit: Commit, writes: Mapping[str, Message]
    ) -> dict[str, Version] | None:
        """The versions that an earlier attempt at this commit gave its documents; None: there was none.

        All documents of a Commit get its time, except one that it did not change. So where a document is no longer as
        this commit wrote it, that time is a version that nothing has any more, and its next write is a Conflict.
        """
        own = await self._own_segment(key, commit.segment) if commit.segment else None
        if own is None:
            return None
        versioned = {path: write for path, write in writes.items() if path in (HEAD, LEASE, CONTROL)}
        stored = await self._rpc.get(*(write.update.name for write in versioned.values())) if versioned else []
        return {
            path: wire.version((document if document and wire.holds(document, write) else own).update_time)
            for (path, write), document in zip(versioned.items(), stored, strict=True)
        }

    async def _pages(self, query: Message, most: float = math.inf) -> AsyncIterator[list[Message]]:
        """A query's documents, page by page; a page ends early with the document that takes it past `most` bytes."""
        limit = query.structured_query.limit.value
        while page := await self._page(query, most):
            yield page
            if len(page) < limit and sum(map(_size, page)) <= most:
                return
            wire.continue_after(query, page[-1])

    async def _page(self, query: Message, most: float) -> list[Message]:
        page: list[Message] = []
        async with aclosing(self._rpc.documents(query)) as found:
            async for document in found:
                page.append(document)
                most -= _size(document)
                if most < 0:
                    break
        return page


async def _both(one: Awaitable[T], other: Awaitable[U]) -> tuple[T, U]:
    """Both answers, awaited side by side. Raises what either raised once both have ended: no call is left behind."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second


async def _all(awaited: Sequence[Awaitable[T]]) -> list[T]:
    """`_both` for any number of one kind."""
    answers = await asyncio.gather(*awaited, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def _size(write: Message) -> int:
    return int(write.ByteSize())


def _read(document: Message) -> tuple[docs.Fields, Version]:
    return wire.decode(document.fields), wire.version(document.update_time)


def _renewed(lease: Lease, stored: Lease | None) -> Lease:
    """The renewed lease, when an earlier attempt of the same renewal is what stands there."""
    if stored and stored.commit == lease.commit:
        return replace(lease, version=stored.version)
    if stored and stored.epoch == lease.epoch:
        raise Conflict(f"the lease of epoch {lease.epoch} was written by another renewal")
    raise LeaseLost(f"the lease of epoch {lease.epoch} is gone")
