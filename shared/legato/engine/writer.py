"""The writer of one turn: numbers events, reduces them, shows them, commits them.

Rules of this file:
- `text.delta`, `reasoning.delta` and `tool.progress` are shown before they are committed; everything else, and
  whatever follows it, is shown after its acknowledgement.
- At most one segment of a session is unacknowledged. What arrives meanwhile goes into the next one.
- A segment is committed `flush` seconds after its first event, at `flush_bytes`, or at once when it holds an event
  that is not shown before it is committed. Its bytes never change once it was sent.
- With `pending_bytes` or `pending_seconds` uncommitted, or past its lease, the writer shows nothing and `ready` waits.
- The last event (terminal, or `turn.suspended`), the turn's record, the head and the released lease are one Commit.
  After it, nothing. A suspension has the control document in it too, so that no answer that came before goes unseen.
- Once the lease is lost nothing is written, shown or numbered any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice, takewhile
from typing import Final, NamedTuple

from legato.engine.feed import Feed
from legato.engine.lead import Lead
from legato.engine.lease import Holding
from legato.engine.runtime import Runtime, persist
from legato.errors import Conflict, LeaseLost, Refused
from legato.events import SHOWN_EARLY, TERMINAL, Event, Payload, Record
from legato.journal import SEGMENT_BYTES, Commit, Private, Segment, SessionKey, Standing
from legato.turn import TurnState, advance, merged

LAST: Final = TERMINAL | {"turn.suspended"}
Ending = Callable[[Segment, TurnState, Standing], tuple[Sequence[Private], Commit]]
"""Makes the Commit of a turn's last segment from its last state and what stands there. Before it come documents that
are stored ahead, each by itself."""


class _Item(NamedTuple):
    """A numbered event. `since` is the loop's time of it: how long it waits is no matter of a clock that may be set."""

    record: Record
    size: int
    since: float
    private: tuple[Private, ...] = ()
    joined: bool = False
    """Durable in one Commit with the one before it."""

    @property
    def weight(self) -> int:
        """Its bytes in a Commit."""
        return self.size + _weight(self.private)


class Writer:
    """`seq` is the last number given."""

    def __init__(
        self, runtime: Runtime, key: SessionKey, holding: Holding, begun: Standing, state: TurnState, fence: Segment
    ) -> None:
        """`fence` is what began this epoch, `begun` the documents since then, `state` the turn up to and with it."""
        settings = runtime.settings
        self.turn = state.turn
        self.seq = fence.last
        self.feed = Feed(fence, settings.feed_bytes, Lead(settings.ahead_bytes, settings.hold_back_seconds))
        self._loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._key = key
        self._holding = holding
        self._standing = begun
        self._state = state
        self._unreduced: list[Payload] = []
        self._acknowledged = fence.last
        self._pending: deque[_Item] = deque()
        self._sent: list[_Item] = []
        self._size = 0
        self._hidden: deque[Record] = deque()
        self._urgent = False
        self._ending: Ending | None = None
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()

    @property
    def state(self) -> TurnState:
        """The turn with every event numbered so far, shown or not."""
        self._reduce()
        return self._state

    # What agents and tools say.

    def show(self, payload: Payload) -> None:
        """Numbers an event that may be seen before it is durable. Raises LeaseLost, Refused."""
        item = self._number(payload)
        if self._hidden or not self.ready:
            self._hidden.append(item.record)
        else:
            self.feed.show((item.record,))
        self._enqueue(item)

    async def commit(self, *payloads: Payload, private: Sequence[Private] = ()) -> None:
        """Numbers events and returns when they are durable, in one Commit with `private`, and shown.

        Raises LeaseLost, Refused.
        """
        for index, payload in enumerate(payloads):
            item = self._number(payload)._replace(joined=index > 0)
            self._hidden.append(item.record)
            self._enqueue(item)
        if private and self._pending and (payloads or self._carries(private)):
            self._pending[-1] = self._pending[-1]._replace(private=(*self._pending[-1].private, *private))
            private = ()
        await self.flush()
        if private:
            self._check(self._state.status == "streaming", "step")
            await self._holding.keep_private(private)

    def _carries(self, private: Sequence[Private]) -> bool:
        """What is pending goes into one Commit with these."""
        return sum(item.weight for item in self._pending) + _weight(private) < SEGMENT_BYTES

    async def flush(self) -> None:
        """Returns when everything numbered so far is durable. Raises LeaseLost."""
        wanted = self.seq
        self._urgent = bool(self._pending)
        self._wake.set()
        while self._acknowledged < wanted:
            await self._next_acknowledgement()

    @property
    def ready(self) -> bool:
        """The journal is close enough behind for the model to go on, and the lease lasts."""
        return self._runtime.clock() < self._holding.lease.expires_at and not self._far_behind()

    async def caught_up(self) -> None:
        """Returns when it is `ready`. Raises LeaseLost."""
        while not self.ready:
            await self._holding.assure()
            if not self.ready:
                await self._next_acknowledgement()

    async def finish(self, payloads: Sequence[Payload], ending: Ending) -> None:
        """Commits the last events with all that is pending, as `ending` says; returns when they are durable."""
        self._ending = ending
        await self.commit(*payloads)

    async def release(self) -> None:
        """Gives the lease up with the turn still active, once nothing is pending; returns when that is durable.

        The head is written with it, so that whoever waits for news of the session looks. Raises LeaseLost.
        """
        await self._under_lease(self._letting_go)
        self._holding.lose()

    # The journal's side.

    async def pump(self) -> None:
        """Commits segments, one at a time, until the turn has ended. Raises what makes that impossible."""
        try:
            while not (self.state.status != "streaming" and self._acknowledged == self.seq):
                await self._wake.wait()
                self._wake.clear()
                while self._pending and self._due():
                    await self._commit_next()
                self._arm()
        except Exception as failure:
            self._failure = failure
            raise
        except asyncio.CancelledError:
            self._failure = LeaseLost("this instance is ending: what is said here is left to the turn's next owner")
            raise
        finally:
            self._ending = None  # it leads back here, and a cycle would keep all that was said for long
            self._disarm()
            self._signal()

    async def _commit_next(self) -> None:
        self._cut()
        records = [item.record for item in self._sent]
        runtime = self._runtime
        segment = Segment.of(records, runtime.nonce(), runtime.clock() + runtime.ttl_ms)
        private = tuple(each for item in self._sent for each in item.private)
        if records[-1].type in LAST:
            await self._conclude(segment)
        elif private:
            await persist(self._append_with, Commit(segment=segment, private=private))
        else:
            await persist(self._append, segment)
        self._acknowledge()

    def _cut(self) -> None:
        """Takes the next segment's events: all that are pending, up to the size of a segment; none without those that
        it was committed with."""
        size = 0
        while self._pending:
            together = self._together()
            added = sum(item.weight for item in together)
            if self._sent and size + added >= SEGMENT_BYTES:
                break
            self._sent += together
            size += added
            for _ in together:
                self._pending.popleft()
        self._urgent = self._urgent and bool(self._pending)

    def _together(self) -> list[_Item]:
        """The next pending event and those committed with it."""
        rest = islice(self._pending, 1, None)
        return [self._pending[0], *takewhile(lambda item: item.joined, rest)]

    async def _append(self, segment: Segment) -> None:
        await self._holding.assure()
        try:
            await self._runtime.journal.append(self._key, segment)
        except LeaseLost:
            self._holding.lose()
            raise

    async def _append_with(self, commit: Commit) -> None:
        await self._holding.assure()
        try:
            await self._runtime.journal.commit(self._key, commit)
        except Conflict:
            self._holding.lose()
            self._holding.check()

    async def _conclude(self, segment: Segment) -> None:
        assert self._ending is not None
        state, ending = self.state, self._ending

        def last() -> tuple[Sequence[Private], Commit]:
            return ending(segment, state, replace(self._standing, lease=self._holding.lease))

        ahead, _ = last()
        for private in ahead:
            await self._holding.keep_private([private])
        await self._under_lease(lambda: last()[1])

    async def _under_lease(self, make: Callable[[], Commit]) -> None:
        """Writes what `make` makes of the documents' stored versions. Raises LeaseLost."""
        while True:
            await self._holding.assure()
            async with self._holding.lock:
                self._holding.check()
                try:
                    await persist(self._runtime.journal.commit, self._key, make())
                    return
                except Conflict:
                    await self._reread()

    def _letting_go(self) -> Commit:
        assert self._standing.head
        now = self._runtime.clock()
        lease = replace(self._holding.lease, expires_at=0, commit=self._runtime.nonce(), sweep_at=now)
        return Commit(head=replace(self._standing.head, updated_at=now), lease=lease)

    async def _reread(self) -> None:
        """Takes up the stored versions after a refused Commit. Raises LeaseLost when the position is another's."""
        standing = await persist(self._runtime.journal.standing, self._key)
        if standing.head is None or standing.epoch != self._holding.epoch or standing.seq != self._acknowledged:
            self._holding.lose()
            self._holding.check()
        self._standing = standing
        self._holding.lease = standing.lease or self._holding.lease

    # Bookkeeping.

    def _check(self, taken: bool, what: str) -> None:
        """Raises LeaseLost, what made the journal impossible, and Refused where `what` is not `taken` any more."""
        self._holding.check()
        if self._failure:
            raise self._failure
        if not taken:
            raise Refused("turn_ended", f"the turn is {self._state.status} and takes no {what}")

    def _number(self, payload: Payload) -> _Item:
        early = payload.type in SHOWN_EARLY
        state = self._state if early else self.state
        self._check(state.accepts(payload.type), payload.type)
        at = self._runtime.clock()
        record = Event(self.seq + 1, self._holding.epoch, self.turn, at, payload).encode()
        self.seq = record.seq
        if early:
            self._unreduced.append(payload)
        else:
            self._state = advance(state, payload)
        return _Item(record, len(record.data.encode()), self._loop.time())

    def _reduce(self) -> None:
        """Text is reduced a segment at a time: one by one, each token would copy all that was said before it."""
        if self._unreduced:
            self._state = reduce(advance, merged(self._unreduced), self._state)
            self._unreduced.clear()

    def _enqueue(self, item: _Item) -> None:
        self._pending.append(item)
        self._size += item.size
        if self._size >= self._runtime.settings.flush_bytes:
            self._wake.set()
        elif self._timer is None:
            self._arm()

    def _due(self) -> bool:
        return self._urgent or self._size >= self._runtime.settings.flush_bytes or self._wait_left() <= 0

    def _wait_left(self) -> float:
        """Seconds until the oldest pending event must be committed."""
        return self._runtime.settings.flush - (self._loop.time() - self._pending[0].since)

    def _arm(self) -> None:
        self._disarm()
        if self._pending:
            self._timer = self._loop.call_later(max(0.001, self._wait_left()), self._wake.set)

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _far_behind(self) -> bool:
        """Too much is uncommitted, or for too long."""
        oldest = self._sent or self._pending
        if not oldest:
            return False
        settings = self._runtime.settings
        waits = self._loop.time() - oldest[0].since
        return self._size >= settings.pending_bytes or waits >= settings.pending_seconds

    def _acknowledge(self) -> None:
        self._acknowledged = self._sent[-1].record.seq
        self._size -= sum(item.size for item in self._sent)
        self._sent = []
        self._reduce()
        self._show_hidden()
        self.feed.acknowledge(self._acknowledged)
        self._signal()

    def _show_hidden(self) -> None:
        """Shows what is durable now, and what may be shown early behind it."""
        early = self.ready
        shown: list[Record] = []
        while self._hidden:
            record = self._hidden[0]
            if record.seq > self._acknowledged and not (early and record.type in SHOWN_EARLY):
                break
            shown.append(self._hidden.popleft())
        if shown:
            self.feed.show(shown)

    def _signal(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _next_acknowledgement(self) -> None:
        self._holding.check()
        if self._failure:
            raise self._failure
        await self._progress.wait()


def _weight(private: Sequence[Private]) -> int:
    return sum(len(each.text.encode()) for each in private if each.text)
