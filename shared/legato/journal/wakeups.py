"""Who waits for news of which session. Pure bookkeeping for the stores' `wait` and `wait_control`."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from legato.journal import Version

Key = TypeVar("Key", bound=Hashable)
Woken = asyncio.Future[None]

UTMOST: Final = 1 << 62
"""A mark beyond all that anybody knows."""
NEVER: Final = UTMOST
"""What is known of that which does not matter: nothing is beyond it."""


class Marks(NamedTuple):
    """How far a session has come: its newest seq, the versions of its head and its control. 0: not there, not known."""

    seq: int = 0
    head: int = 0
    control: int = 0

    def beyond(self, known: Marks) -> bool:
        return any(mark > seen for mark, seen in zip(self, known, strict=True))


def news(after: int, head: Version) -> Marks:
    """What a follower knows, who does not care for the control."""
    return Marks(after, head or 0, NEVER)


def asked(control: Version) -> Marks:
    """What an owner knows, who cares for the control alone."""
    return Marks(NEVER, NEVER, control or 0)


class Waiters(Generic[Key]):
    """Futures by session, each with the marks it knows. `fresh` sessions: somebody came since the last look."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Woken, Marks]] = {}
        self._fresh: set[Key] = set()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @contextmanager
    def waiting(self, key: Key, known: Marks) -> Iterator[Woken]:
        """A future that is done when the session is beyond `known`."""
        woken: Woken = asyncio.get_running_loop().create_future()
        self._by_key.setdefault(key, {})[woken] = known
        self._fresh.add(key)
        try:
            yield woken
        finally:
            self._leave(key, woken)

    def _leave(self, key: Key, woken: Woken) -> None:
        rest = self._by_key[key]
        del rest[woken]
        if not rest:
            del self._by_key[key]
            self._fresh.discard(key)

    def wake(self, key: Key, marks: Marks) -> None:
        for woken, known in self._by_key.get(key, {}).items():
            if marks.beyond(known) and not woken.done():
                woken.set_result(None)

    def wake_all(self) -> None:
        for waiting in self._by_key.values():
            for woken in waiting:
                if not woken.done():
                    woken.set_result(None)

    def take_fresh(self) -> list[Key]:
        """The sessions that somebody came to wait for since the last call."""
        fresh, self._fresh = self._fresh, set()
        return list(fresh)
