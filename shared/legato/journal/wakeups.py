"""Who waits for news of which session. Pure bookkeeping for the stores' `wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from legato.journal import SessionKey

Woken = asyncio.Future[None]


class Waiters:
    """Futures by session, each with the seq it has seen. `fresh` sessions: somebody came since the last look."""

    def __init__(self) -> None:
        self._by_key: dict[SessionKey, dict[Woken, int]] = {}
        self._fresh: set[SessionKey] = set()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @contextmanager
    def waiting(self, key: SessionKey, after: int) -> Iterator[Woken]:
        """A future that is done when there is news beyond `after`."""
        woken: Woken = asyncio.get_running_loop().create_future()
        self._by_key.setdefault(key, {})[woken] = after
        self._fresh.add(key)
        try:
            yield woken
        finally:
            self._leave(key, woken)

    def _leave(self, key: SessionKey, woken: Woken) -> None:
        rest = self._by_key[key]
        del rest[woken]
        if not rest:
            del self._by_key[key]
            self._fresh.discard(key)

    def wake(self, key: SessionKey, seq: int) -> None:
        for woken, after in self._by_key.get(key, {}).items():
            if seq > after and not woken.done():
                woken.set_result(None)

    def wake_all(self) -> None:
        for key in self._by_key:
            self.wake(key, 1 << 62)

    def take_fresh(self) -> list[tuple[str, str, int]]:
        """`(uid, session, after)` of the sessions that somebody came to wait for since the last call."""
        fresh, self._fresh = self._fresh, set()
        return [(*key, min(self._by_key[key].values())) for key in fresh]
