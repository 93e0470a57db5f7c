"""Replay, follow and live as one loop: read what is behind the cursor, send it, wait for more.

Rules of this file:
- A position is checked against the journal when a reader attaches, whenever it goes from feed to journal, and after
  every wait. It is exact, or the reader is sent a snapshot that says so. Never a silent gap, never an error loop.
- A reader runs nothing: when it leaves, the turn goes on. But whoever follows a turn that nobody owns takes it over.
- It takes up a bounded part of feed or journal at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from legato import sse
from legato.engine.feed import Feed
from legato.engine.records import joined
from legato.engine.run import Engine
from legato.engine.runtime import Runtime
from legato.engine.view import view
from legato.events import TERMINAL, Cursor, Record
from legato.journal import Segment, SessionKey, Standing, Version, fill
from legato.turn import snapshot

AHEAD_SECONDS = 5.0
"""How long the journal may take to reach a cursor that is ahead of it, while its epoch's owner lives."""
ORPHAN_CHECK_MS = 5_000
"""When a turn that nobody owns, and that could not be taken over, is looked at again."""
SEGMENTS = 16
SEGMENTS_MOST = 1000
STORED_BYTES = 256 * 1024
"""About how much of the journal a reader takes up at once, a single larger segment apart."""
PIECE_BYTES = 64 * 1024
"""How much a stream hands over at once, about: whoever sends it buffers one piece for a client that does not read."""


@dataclass(slots=True)
class Batch:
    """What a reader is given next. `over`: nothing follows. `reason`: the stream closes before the turn ends."""

    frames: list[bytes] = field(default_factory=list)
    snapshot: dict[str, Any] | None = None
    over: bool = False
    reason: str | None = None


class Reader:
    """One reader's position in one session. `cursor` None asks for a snapshot.

    `exact` marks a position that is right whatever epoch stands there: the start of a turn, a snapshot's end.
    With `turn` the reader is over after that turn's terminal event.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        key: SessionKey,
        cursor: Cursor | None,
        turn: str | None,
        exact: bool = False,
    ) -> None:
        self.cursor = cursor
        self.turn = turn
        self.feed: Feed | None = None
        self._exact = exact
        self._runtime = runtime
        self._engine = engine
        self._key = key
        self._looked = False
        self._settled = False
        self._head: Version = None
        self._check_at: int | None = None
        self._ahead_until: int | None = None
        self._limit = SEGMENTS

    def live(self) -> Batch | None:
        """What the live feed has behind the cursor; None: wait for it, or read the journal where `feed` is None."""
        feed = self.feed or self._attach()
        if feed is None and self._engine.leaves(self._key):
            return Batch(over=True, reason="draining")
        if feed is None or self.cursor is None:
            return None
        if not feed.holds(self.cursor.seq):
            self.feed = None
            return None
        frames = feed.after(self.cursor.seq, PIECE_BYTES)
        if frames:
            reached = self.cursor.seq + len(frames)
            over = reached == feed.last and feed.ended and feed.turn == self.turn
            return self._moved(frames, Cursor(feed.epoch, reached), over)
        if feed.closed is None:
            return None
        self.feed = None
        return Batch(over=True, reason=feed.closed) if feed.closed in ("lease", "draining") else None

    async def stored(self, patience: float) -> Batch | None:
        """What the journal has behind the cursor; None when there was nothing for `patience` seconds or less.

        Once there is no more, nothing is read until there may be news. Raises JournalUnavailable.
        """
        if self.cursor is None:
            return await self._snapshot()
        return await (self._wait(patience) if self._settled else self._read(patience))

    async def _read(self, patience: float) -> Batch | None:
        assert self.cursor
        runtime = self._runtime
        limit = self._limit
        found = await runtime.journal.read(self._key, max(self.cursor.seq, 1), runtime.clock(), limit)
        segments = self._some(found)
        if not self._stands(segments):
            return await self._elsewhere(patience)
        self._ahead_until = None
        fresh = [record for segment in joined(segments, self.cursor.seq) for record in segment.records()]
        fresh = self._wanted(record for record in fresh if record.seq > self.cursor.seq)
        if fresh:
            over = fresh[-1].turn == self.turn and fresh[-1].type in TERMINAL
            more = len(segments) < len(found) or fill(found, limit) or fresh[-1].type == "turn.suspended"
            self._settled = self._looked and not more
            return self._moved([sse.frame(record) for record in fresh], fresh[-1].cursor, over)
        if segments and segments[-1].last > self.cursor.seq:
            return await self._snapshot()
        return await self._look_after()

    async def _wait(self, patience: float) -> None:
        """Until there may be news, or it is time to see whether the owner still lives."""
        assert self.cursor
        runtime = self._runtime
        if self._check_at is not None:
            patience = max(0.0, min(patience, (self._check_at - runtime.clock()) / 1000))
        if await runtime.journal.wait(self._key, self.cursor.seq, self._head, patience):
            self._settled = False
        elif self._check_at is not None and runtime.clock() >= self._check_at:
            lease = await runtime.journal.lease(self._key)
            self._settled = lease is not None and lease.expires_at > runtime.clock()
            self._check_at = lease.expires_at if lease else None

    def _attach(self) -> Feed | None:
        """The live feed, if it is known to follow on this reader's position.

        An owner may not know yet that its session has gone on without it: that a feed has reached a seq says nothing.
        """
        live = self._engine.live.get(self._key)
        if live is None or self.cursor is None or live.writer.feed.closed:
            return None
        feed = live.writer.feed
        follows_on = self._exact and self.cursor.epoch <= feed.epoch and self.cursor.seq == feed.start
        if feed.knows(self.cursor) or follows_on:
            self.feed, self._settled = feed, False
        return self.feed

    def _some(self, segments: list[Segment]) -> list[Segment]:
        """The first of them, one behind the cursor at least. The next read asks for about as many as will be kept."""
        assert self.cursor
        some: list[Segment] = []
        room = STORED_BYTES
        for segment in segments:
            some.append(segment)
            room -= len(segment.events) if segment.last > self.cursor.seq else 0
            if room <= 0:
                break
        if segments:
            average = sum(len(segment.events) for segment in segments) // len(segments)
            self._limit = min(SEGMENTS_MOST, 2 + STORED_BYTES // average)
        return some

    def _stands(self, segments: list[Segment]) -> bool:
        """The event at the cursor is in the journal under the cursor's epoch."""
        assert self.cursor
        if self._exact:
            return True
        held = segments[0] if segments else None
        return held is not None and held.first <= self.cursor.seq <= held.last and held.epoch == self.cursor.epoch

    def _wanted(self, records: Iterable[Record]) -> list[Record]:
        """Up to the terminal event of this reader's turn."""
        wanted: list[Record] = []
        for record in records:
            wanted.append(record)
            if record.type in TERMINAL and record.turn == self.turn:
                break
        return wanted

    def _moved(self, frames: list[bytes], cursor: Cursor, over: bool) -> Batch:
        self.cursor, self._exact = cursor, False
        return Batch(frames, over=over)

    async def _elsewhere(self, patience: float) -> Batch | None:
        """The cursor is not in the journal: ahead of it, while its owner lives; or of a past that is gone."""
        assert self.cursor
        runtime, now = self._runtime, self._runtime.clock()
        standing = await runtime.journal.standing(self._key)
        lease = standing.lease
        if self.cursor.seq <= standing.seq:
            # The journal may have reached the cursor since it was read.
            if self._stands(await runtime.journal.read(self._key, self.cursor.seq, now, 1)):
                return None
        elif lease and standing.owned(now) and lease.epoch == self.cursor.epoch:
            self._ahead_until = self._ahead_until or now + int(AHEAD_SECONDS * 1000)
            if now < self._ahead_until:
                patience = min(patience, (self._ahead_until - now) / 1000)
                await runtime.journal.wait(self._key, standing.seq, standing.head and standing.head.version, patience)
                return None
        return await self._snapshot()

    async def _snapshot(self) -> Batch:
        found = await view(self._runtime, self._key)
        if found is None:
            return Batch(over=True, reason="lease")
        state = found.state
        self.cursor, self._exact, self._ahead_until = state.cursor, True, None
        self._settled = False
        turn = state.find(self.turn) if self.turn else None
        fields = {**snapshot(state), "before": found.before}
        return Batch(snapshot=fields, over=self.turn is not None and (turn is None or turn.ended))

    async def _look_after(self) -> Batch | None:
        """Sees whether the session is still there, takes over a turn that nobody owns, notices expired events."""
        assert self.cursor
        runtime = self._runtime
        standing = await runtime.journal.standing(self._key)
        if standing.head is None or standing.head.deleted:
            return Batch(over=True, reason="lease")
        self._looked, self._head = True, standing.head.version
        if standing.seq <= self.cursor.seq and self._suspended(standing):
            return Batch(over=True, reason="suspended")
        self._check_at = await self._owner_check(standing)
        if standing.seq > self.cursor.seq:
            segments = await runtime.journal.read(self._key, self.cursor.seq + 1, runtime.clock(), 1)
            return None if joined(segments, self.cursor.seq) else await self._snapshot()
        self._settled = True
        return None

    def _suspended(self, standing: Standing) -> bool:
        """The turn waits, and nothing of what it waits for has come."""
        turn = standing.head.turn if standing.head else None
        return turn is not None and turn.status == "waiting" and not self._engine.needs_owner(standing)

    async def _owner_check(self, standing: Standing) -> int | None:
        """When to see whether the session's owner lives; None: it has none, and needs none."""
        now = self._runtime.clock()
        if self._engine.needs_owner(standing):
            await self._engine.take_over(self._key)
            return now + ORPHAN_CHECK_MS
        return standing.lease.expires_at if standing.lease and standing.owned(now) else None
