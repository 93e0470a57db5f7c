"""Replay, follow and live as one loop: read what is behind the cursor, send it, wait for more.

Rules of this file:
- A position is checked against the journal when a reader attaches, whenever it goes from feed to journal, and after
  every wait. It is exact, or the reader is sent a snapshot that says so. Never a silent gap, never an error loop.
- A reader runs nothing: when it leaves, the turn goes on. But whoever follows a turn that nobody owns takes it over.
- No stream is silent for longer than the ping interval, whatever the journal does.
- A client that does not read costs a bounded number of bytes. Only the stream that started a turn may hold its model
  back, and it closes as `slow` once it has used that up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from legato import sse
from legato.engine.feed import Feed
from legato.engine.lead import Lead
from legato.engine.records import joined
from legato.engine.run import Engine
from legato.engine.runtime import ANSWER_SECONDS, Runtime
from legato.engine.view import view
from legato.errors import Draining, JournalUnavailable
from legato.events import TERMINAL, Cursor, Record
from legato.journal import Segment, SessionKey, Standing, Version, fill
from legato.turn import snapshot

log = logging.getLogger("legato.follow")

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
RETRY_MS = 1_000


class Looks:
    """The looks at the journal that readers of this instance wait for, so that all of them can be broken off."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Batch | None]] = set()

    def start(self, look: Coroutine[Any, Any, Batch | None]) -> asyncio.Task[Batch | None]:
        task = asyncio.create_task(look)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def break_off(self) -> None:
        for task in self._running:
            task.cancel()


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
        """The live feed, if it is known to follow on this reader's position."""
        live = self._engine.live.get(self._key)
        if live is None or self.cursor is None or live.writer.feed.closed:
            return None
        feed = live.writer.feed
        follows_on = self._exact and self.cursor.epoch <= feed.epoch and feed.start <= self.cursor.seq <= feed.last
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
            return Batch(over=True)
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
            return Batch(over=True)
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


class Stream:
    """One open SSE stream. `id` is its name for `/auth`, `turn` the one turn it is about, None for the session's.

    `lead` is given to the stream that started the turn.
    """

    def __init__(
        self, runtime: Runtime, name: str, key: SessionKey, reader: Reader, looks: Looks, lead: Lead | None = None
    ) -> None:
        self.id = name
        self.session = key.session
        self.turn = reader.turn
        self._reader = reader
        self._lead = lead
        self._looks = looks
        self._settings = runtime.settings
        self._reading: asyncio.Task[Batch | None] | None = None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the stream; closing the iterator is how a client leaves."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.deadline * random.uniform(0.95, 1.0)
        self._begin()
        try:
            yield sse.OPENING
            sent = loop.time()
            while (now := loop.time()) < until and not self._slow:
                if now - sent >= self._settings.ping:
                    yield sse.PING
                    sent = now
                batch = await self._next(min(sent + self._settings.ping, until) - now)
                if batch is not None:
                    for piece in _pieces(batch):
                        yield piece
                        self._taken(batch, piece)
                    if batch.over:
                        return
                    sent = loop.time()
                    del batch, piece  # whoever waits keeps nothing of what it was given
            yield _closing("slow" if self._slow else "deadline")
        finally:
            self._end()

    def _begin(self) -> None:
        if self._lead:
            self._lead.begin()

    def _end(self) -> None:
        if self._lead:
            self._lead.end()
        if self._reading:
            self._reading.cancel()

    @property
    def _slow(self) -> bool:
        return self._lead is not None and self._lead.slow

    def _taken(self, batch: Batch, piece: bytes) -> None:
        """After a snapshot nobody knows how far behind a stream is: it leads no more."""
        if self._lead and batch.frames:
            self._lead.took(len(piece))
        elif self._lead:
            self._lead.end()

    async def _next(self, timeout: float) -> Batch | None:
        reader = self._reader
        if reader.feed is not None:
            assert reader.cursor
            await reader.feed.wait(reader.cursor.seq, timeout)
            return reader.live()
        if self._reading is None:
            batch = reader.live()
            if batch is not None or reader.feed is not None:
                return batch
            self._reading = self._looks.start(reader.stored(timeout))
        await asyncio.wait({self._reading}, timeout=timeout)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        if reading.cancelled():
            return None
        try:
            return reading.result()
        except JournalUnavailable as silent:
            log.warning("session %s: the journal does not answer: %s", self.session, silent)
            await asyncio.sleep(min(timeout, 0.5))
            return None


async def poll(reader: Reader, wait: float, looks: Looks) -> dict[str, Any]:
    """The long poll: `{events, snapshot?, cursor, more}`, at once when there is something, after `wait` s at latest.

    Raises JournalUnavailable, Draining.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        batch = reader.live()
        left = max(0.0, until - loop.time())
        if batch is None and reader.feed is not None:
            assert reader.cursor
            await reader.feed.wait(reader.cursor.seq, left)
            batch = reader.live()
        elif batch is None:
            batch = await _in_time(looks.start(reader.stored(left)), left + ANSWER_SECONDS)
        if batch and batch.reason == "draining" and reader.cursor is None:
            raise Draining("this instance is about to end; ask again, another will answer")
        if batch is not None or loop.time() >= until:
            return _polled(reader, batch or Batch())


async def _in_time(look: asyncio.Task[Batch | None], seconds: float) -> Batch | None:
    """None also for a look that was broken off."""
    try:
        await asyncio.wait({look}, timeout=seconds)
        if not look.done():
            raise JournalUnavailable("the journal does not answer; ask again")
        return None if look.cancelled() else look.result()
    finally:
        look.cancel()


def _polled(reader: Reader, batch: Batch) -> dict[str, Any]:
    events = [from_json(sse.line(frame)) for frame in batch.frames]
    more = not batch.over or batch.reason is not None
    answer: dict[str, Any] = {"events": events, "cursor": str(reader.cursor), "more": more}
    if batch.snapshot is not None:
        answer["snapshot"] = batch.snapshot
    return answer


def _pieces(batch: Batch) -> Iterator[bytes]:
    """The batch as a stream sends it, in pieces of PIECE_BYTES to twice that, the last one apart."""
    piece: list[bytes] = []
    size = 0
    for frame in _frames(batch):
        for start in range(0, len(frame), PIECE_BYTES):
            piece.append(frame[start : start + PIECE_BYTES])
            size += len(piece[-1])
            if size >= PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _frames(batch: Batch) -> Iterable[bytes]:
    if batch.snapshot is not None:
        return [sse.control("snapshot", batch.snapshot, id=batch.snapshot["cursor"])]
    return [_closing(batch.reason)] if batch.reason is not None else batch.frames


def _closing(reason: str) -> bytes:
    """Another instance answers at once for one that drains."""
    return sse.control("stream.closing", {"reason": reason, "retry_ms": 0 if reason == "draining" else RETRY_MS})
