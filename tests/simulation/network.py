"""The way between one instance and the store: slow, lossy, cut off for a while; all of it drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, TypeVar

from legato.errors import JournalRejected, JournalUnavailable
from legato.journal import (
    PAGE,
    Commit,
    Control,
    Head,
    Lease,
    Place,
    Segment,
    SessionItem,
    SessionKey,
    Standing,
    TurnRecord,
    Version,
    wakeups,
)
from legato.journal.wakeups import Marks, Waiters
from simulation.store import Store

T = TypeVar("T")
TIMEOUT = (0.5, 3.0)
"""Seconds after which a caller gives an answer up."""
LATENESS = (0.001, 6.0)
"""Seconds after which a write may be applied still, though its caller was told nothing."""
POLL = 5.0
OUTSIDE = Context()
"""What happens at the store happens whatever becomes of who asked for it."""


class Fate(NamedTuple):
    """What becomes of one call, in seconds from now: when it reaches the store, if it does, and when its answer comes
    back. `heard`: the caller gets it; else it is told at `back` that the journal does not answer."""

    there: float | None
    back: float
    heard: bool


@dataclass
class Weather:
    """How bad the network is: each call is lost with probability `loss`. `pace` is a delay, one way, in seconds."""

    random: Random
    loss: float = 0.0
    pace: tuple[float, float] = (0.001, 0.015)

    def fate(self, cut: bool) -> Fate:
        draw = self.random
        if cut:
            return Fate(None, draw.uniform(*TIMEOUT), heard=False)
        there = draw.uniform(*self.pace)
        if draw.random() >= self.loss:
            return Fate(there, there + draw.uniform(*self.pace), heard=True)
        kind = draw.randrange(3)
        applied = (None, there, draw.uniform(*LATENESS))[kind]
        return Fate(applied, draw.uniform(*TIMEOUT), heard=False)


CALM = Weather(Random(0), 0.0, (0.0, 0.0))


class Network:
    """`Journal` as one instance has it. `waiters` are of the whole world: the store wakes them."""

    def __init__(self, store: Store, waiters: Waiters[SessionKey], weather: Weather = CALM) -> None:
        self.weather = weather
        self.cut = False
        self.closed = False
        self.sent: Callable[[SessionKey, str, Segment], None] | None = None
        self.answered: Callable[[SessionKey, str, Segment], None] | None = None
        self._store = store
        self._waiters = waiters

    async def append(self, key: SessionKey, segment: Segment) -> None:
        await self._write(key, "append", segment, lambda: self._store.append(key, segment))

    async def renew(self, key: SessionKey, lease: Lease) -> Lease:
        return await self._call(lambda: self._store.renew(key, lease))

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        kind = "end" if commit.lease and not commit.lease.expires_at else "fence"
        return await self._write(key, kind, commit.segment, lambda: self._store.commit(key, commit))

    async def standing(self, key: SessionKey, *, trust_head: bool = False) -> Standing:
        """Documents and newest position are read side by side: one a moment before the other."""
        documents, last = await asyncio.gather(
            self._call(lambda: self._store.documents(key)),
            self._call(lambda: self._store.last(key)),
            return_exceptions=True,
        )
        if isinstance(documents, BaseException):
            raise documents
        if isinstance(last, BaseException):
            raise last
        active = documents.head and documents.head.turn
        return replace(documents, last=0 if trust_head and not active else last)

    async def lease(self, key: SessionKey) -> Lease | None:
        return await self._call(lambda: self._store.of(key).lease)

    async def control(self, key: SessionKey) -> Control | None:
        return await self._call(lambda: self._store.control(key))

    async def read(self, key: SessionKey, since: int, now: int, limit: int = PAGE) -> list[Segment]:
        return await self._call(lambda: self._store.read(key, since, now, limit))

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        return await self._call(lambda: self._store.private(key, turn, now))

    async def orphans(self, now: int, limit: int) -> list[SessionKey]:
        return await self._call(lambda: self._store.orphans(now, limit))

    async def turn(self, key: SessionKey, turn: str) -> TurnRecord | None:
        return await self._call(lambda: self._store.turn(key, turn))

    async def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        return await self._call(lambda: self._store.turns(key, before, limit))

    async def sessions(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        return await self._call(lambda: self._store.list(uid, before, limit))

    async def purge(self, key: SessionKey, tombstone: Head) -> None:
        await self._call(lambda: self._store.purge(key, tombstone))

    async def wait(self, key: SessionKey, after: int, head: Version, timeout: float) -> bool:
        return await self._wait(key, wakeups.news(after, head), timeout)

    async def wait_control(self, key: SessionKey, known: Version, timeout: float) -> bool:
        return await self._wait(key, wakeups.asked(known), timeout)

    async def _wait(self, key: SessionKey, known: Marks, timeout: float) -> bool:
        """News are seen late, and sometimes not before the next poll."""
        if self.cut or self.weather.random.random() < self.weather.loss:
            await asyncio.sleep(min(timeout, POLL))
            return timeout > POLL
        if self._store.marks(key).beyond(known):
            await self._call(lambda: None)
            return True
        with self._waiters.waiting(key, known) as woken:
            await asyncio.wait([woken], timeout=timeout)
        return woken.done()

    async def check(self) -> None:
        await self._call(lambda: None)

    async def close(self) -> None:
        self.closed = True

    async def _write(self, key: SessionKey, kind: str, segment: Segment | None, work: Callable[[], T]) -> T:
        if segment and self.sent:
            self.sent(key, kind, segment)
        try:
            return await self._call(work)
        finally:
            if segment and self.answered:
                self.answered(key, kind, segment)

    async def _call(self, work: Callable[[], T]) -> T:
        if self.closed:
            raise JournalRejected("the journal is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        fate = self.weather.fate(self.cut)
        if fate.heard:
            assert fate.there is not None
            loop.call_later(fate.there, _arrive, work, answer, fate.back - fate.there, context=OUTSIDE)
        else:
            if fate.there is not None:
                loop.call_later(fate.there, _attempt, work, context=OUTSIDE)
            loop.call_later(fate.back, _give_up, answer, context=OUTSIDE)
        return await answer


def _attempt(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as refused:
        return refused


def _arrive(work: Callable[[], Any], answer: asyncio.Future[Any], back: float) -> None:
    answer.get_loop().call_later(back, _tell, answer, _attempt(work), context=OUTSIDE)


def _tell(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _give_up(answer: asyncio.Future[Any]) -> None:
    _tell(answer, JournalUnavailable("no answer"))
