"""What a reader is given, as clients get it: an SSE stream, or one answer of the long poll.

Rules of this file:
- No stream is silent for longer than the ping interval, whatever the journal does.
- Every stream has a last frame that says why it ends, whatever went wrong: a terminal event or `stream.closing`.
- No stream outlives its caller's token: see `admission`. What a batch holds was read in time and is handed over whole.
- A client that does not read costs a bounded number of bytes. Only the stream that started a turn may hold its model
  back, and it closes as `slow` once it has used that up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from typing import Any, Final

from pydantic_core import from_json

from legato import sse
from legato.admission import Admission
from legato.engine.lead import Lead
from legato.engine.runtime import ANSWER_SECONDS, Runtime
from legato.errors import Draining, JournalUnavailable
from legato.follow import PIECE_BYTES, Batch, Reader

log = logging.getLogger("legato.stream")
RETRY_MS: Final = 1_000
AT_ONCE: Final = ("draining", "auth")


class Looks:
    """The looks at the journal that readers of this instance wait for, so that all of them can be broken off."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Batch | None]] = set()

    def start(self, look: Coroutine[Any, Any, Batch | None]) -> asyncio.Task[Batch | None]:
        task = asyncio.create_task(look)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Batch | None]) -> None:
        """Whoever waited for it may have left: then nobody asks how it ended."""
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    def break_off(self) -> None:
        for task in self._running:
            task.cancel()


class Stream:
    """One open SSE stream. `id` is its name for `/auth`, `turn` the one turn it is about, None for the session's.

    `lead` is given to the stream that started the turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        session: str,
        reader: Reader,
        looks: Looks,
        admission: Admission,
        lead: Lead | None = None,
    ) -> None:
        self.id = admission.stream
        self.session = session
        self.turn = reader.turn
        self._reader = reader
        self._lead = lead
        self._looks = looks
        self._admission = admission
        self._settings = runtime.settings
        self._reading: asyncio.Task[Batch | None] | None = None
        self._woken = asyncio.get_running_loop().create_future()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the stream; closing the iterator is how a client leaves."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.deadline * random.uniform(0.95, 1.0)
        self._begin()
        try:
            yield sse.OPENING
            sent = loop.time()
            while (reason := self._closes(loop.time() >= until)) is None:
                now = loop.time()
                if due := self._due(now - sent):
                    yield due
                    sent = now
                batch = await self._next(min(sent + self._settings.ping - now, until - now, self._admission.left))
                if batch is not None and not self._admission.over:
                    for piece in _pieces(batch):
                        yield piece
                        self._taken(batch, piece)
                    if batch.over:
                        return
                    sent = loop.time()
                    del batch, piece  # whoever waits keeps nothing of what it was given
            yield _closing(reason)
        except Exception:
            log.exception("session %s: this stream cannot be gone on with; its client will ask again", self.session)
            yield _closing("lease")
        finally:
            self._end()

    def _begin(self) -> None:
        self._admission.begin(self._wake)
        if self._lead:
            self._lead.begin()

    def _end(self) -> None:
        self._admission.end()
        if self._lead:
            self._lead.end()
        if self._reading:
            self._reading.cancel()

    def _closes(self, late: bool) -> str | None:
        """Why this stream ends now, if it does. Whoever wakes it from here on ends its next wait."""
        if self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()
        if self._lead is not None and self._lead.slow:
            return "slow"
        if self._admission.over:
            return "auth"
        return "deadline" if late else None

    def _due(self, silence: float) -> bytes | None:
        """What has to be sent apart from events, `silence` seconds after the last bytes."""
        return self._admission.notice() or (sse.PING if silence >= self._settings.ping else None)

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

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
            await reader.feed.wait(reader.cursor.seq, timeout, self._woken)
            return reader.live()
        if self._reading is None:
            batch = reader.live()
            if batch is not None or reader.feed is not None:
                return batch
            self._reading = self._looks.start(reader.stored(timeout))
        await asyncio.wait({self._reading, self._woken}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
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
    """Another instance answers at once for one that drains, and any of them where the token is a fresh one."""
    return sse.control("stream.closing", {"reason": reason, "retry_ms": 0 if reason in AT_ONCE else RETRY_MS})
