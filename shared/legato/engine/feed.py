"""The live turn's events as its readers on this instance get them: one shared buffer of encoded frames."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from legato import sse
from legato.engine.lead import Lead
from legato.events import TERMINAL, Cursor, Record
from legato.journal import Segment


class Feed:
    """Events of one epoch that may be shown, newest last. It forgets the oldest beyond `limit` bytes, but never one
    that the journal does not have yet: a reader that falls out of it reads the journal."""

    def __init__(self, fence: Segment, limit: int, lead: Lead) -> None:
        """`fence` is what began the epoch; it is durable already."""
        self.lead = lead
        self.epoch = fence.epoch
        self.turn = fence.turn
        self.ended = False
        self.start = fence.first - 1
        self.last = self.start
        self.closed: str | None = None
        self._base = self.start
        self._committed = fence.last
        self._frames: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._alarm: asyncio.Handle | None = None
        self._rings_at = math.inf
        self.show(fence.records())

    def show(self, records: Sequence[Record]) -> None:
        for record in records:
            frame = sse.frame(record)
            self._frames.append(frame)
            self._size += len(frame)
            self.lead.shown(len(frame))
        self.last = records[-1].seq
        self.ended = records[-1].type in TERMINAL
        if self._size > self._limit:
            self._trim()
        if self._waiting:
            self._wake()

    def acknowledge(self, seq: int) -> None:
        """The journal has everything up to `seq`."""
        self._committed = seq
        self._trim()

    def close(self, reason: str) -> None:
        """Nothing more comes: `ended` when the turn did, `lease` when this instance lost it, `draining` when it gave it
        up."""
        self.closed = reason
        self._wake()
        if self._alarm:
            self._alarm.cancel()

    def knows(self, cursor: Cursor) -> bool:
        """The cursor is one of this epoch's events as shown here, so the journal need not be asked about it."""
        return cursor.epoch == self.epoch and self.start < cursor.seq <= self.last

    def holds(self, seq: int) -> bool:
        """What follows `seq` is still in the buffer."""
        return seq >= self._base

    def after(self, seq: int, room: int) -> list[bytes]:
        """The next frames behind `seq`, which must be one that `holds`: about `room` bytes, one frame at least."""
        first = end = seq - self._base
        while end < len(self._frames) and room > 0:
            room -= len(self._frames[end])
            end += 1
        return self._frames[first:end]

    async def wait(self, seq: int, timeout: float, woken: asyncio.Future[None] | None = None) -> None:
        """Returns when something behind `seq` is shown or the feed is closed, after `timeout` seconds at the latest; or
        when somebody else resolves `woken`."""
        if self.last > seq or self.closed:
            return
        loop = asyncio.get_running_loop()
        woken = woken or loop.create_future()
        due = loop.time() + timeout
        self._waiting[woken] = due
        if due < self._rings_at:
            self._arm(due)
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)

    def _arm(self, due: float) -> None:
        """One timer for all who wait, set anew only when it rings: most waits end long before."""
        if self._alarm:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(due, self._ring)
        self._rings_at = due

    def _ring(self) -> None:
        self._alarm, self._rings_at = None, math.inf
        now = asyncio.get_running_loop().time()
        for woken, due in self._waiting.items():
            if due <= now:
                _resolve(woken)
        later = [due for due in self._waiting.values() if due > now]
        if later:
            self._arm(min(later))

    def _wake(self) -> None:
        for woken in self._waiting:
            _resolve(woken)
        self._waiting.clear()

    def _trim(self) -> None:
        drop = 0
        while self._size > self._limit and self._base + drop < self._committed:
            self._size -= len(self._frames[drop])
            drop += 1
        if drop:
            del self._frames[:drop]
            self._base += drop


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
