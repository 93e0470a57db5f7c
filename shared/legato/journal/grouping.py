"""Group commit: writes of many sessions share one RPC or transaction, and each waiter gets the answer to its own alone.

- After a quiet moment a write goes at once. What arrives within `spacing` of a group's start goes into the next one,
  so that a short round trip does not make groups of one.
- A few groups are in flight at most: one that hangs does not hold up the others.
- A group that is refused as a whole is halved until the write to blame stands alone.
- A document is written once in a group: Firestore refuses a BatchWrite that names one twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from legato.errors import JournalRejected, JournalUnavailable

Answer = TypeVar("Answer")
Written = int | Exception
"""The new version of a written document, or why it was not written."""


@dataclass(slots=True)
class _Waiting(Generic[Answer]):
    name: Hashable
    size: int
    write: Any
    outcome: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, outcome: Answer | Exception) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class Grouping(Generic[Answer]):
    """`send` takes the writes of a group and gives one outcome for each. Raises what befell the group as a whole.

    `spacing` is the least time, in seconds, between the starts of two groups.
    """

    def __init__(
        self,
        send: Callable[[list[Any]], Awaitable[Sequence[Answer | Exception]]],
        *,
        in_flight: int,
        max_writes: int,
        max_bytes: int,
        spacing: float = 0,
    ) -> None:
        self._send, self._in_flight, self._spacing = send, in_flight, spacing
        self._max_writes, self._max_bytes = max_writes, max_bytes
        self._pending: deque[_Waiting[Answer]] = deque()
        self._groups: set[asyncio.Task[None]] = set()
        self._due: asyncio.Handle | None = None
        self._next = 0.0

    async def put(self, name: Hashable, size: int, write: Any) -> Answer:
        """Writes one document of `size` bytes; gives the answer to it. Raises what its own write or its group met."""
        waiting: _Waiting[Answer] = _Waiting(name, size, write)
        self._pending.append(waiting)
        self._schedule()
        return await waiting.outcome

    async def drain(self) -> None:
        """Returns when every write that was put has its outcome."""
        while self._pending or self._groups:
            busy: list[asyncio.Future[Any]] = [*self._groups, *(waiting.outcome for waiting in self._pending)]
            await asyncio.wait(busy)

    def _schedule(self) -> None:
        if self._due or not self._pending or len(self._groups) >= self._in_flight:
            return
        self._due = asyncio.get_running_loop().call_at(self._next, self._start)

    def _start(self) -> None:
        self._due = None
        if group := self._take():
            loop = asyncio.get_running_loop()
            self._next = loop.time() + self._spacing
            task = loop.create_task(self._deliver(group))
            self._groups.add(task)
            task.add_done_callback(self._ended)
        self._schedule()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._groups.discard(task)
        self._schedule()

    def _take(self) -> list[_Waiting[Answer]]:
        group: list[_Waiting[Answer]] = []
        names: set[Hashable] = set()
        room = self._max_bytes
        while self._pending and len(group) < self._max_writes:
            following = self._pending[0]
            if following.outcome.done():
                self._pending.popleft()
                continue
            if group and (following.size > room or following.name in names):
                break
            group.append(self._pending.popleft())
            names.add(following.name)
            room -= following.size
        return group

    async def _deliver(self, group: list[_Waiting[Answer]]) -> None:
        try:
            outcomes = await self._send([waiting.write for waiting in group])
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.settle(outcome)
        except JournalRejected as refused:
            if len(group) == 1:
                group[0].settle(refused)
                return
            await self._deliver(group[: len(group) // 2])
            await self._deliver(group[len(group) // 2 :])
        except Exception as failed:
            for waiting in group:
                waiting.settle(_unavailable(failed))


def _unavailable(failed: Exception) -> JournalUnavailable:
    """An error for one waiter alone. Whether its write was done, nobody knows, whatever befell the group."""
    known = isinstance(failed, JournalUnavailable)
    return JournalUnavailable(str(failed) if known else f"{type(failed).__name__}: {failed}")
