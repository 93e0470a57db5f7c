"""What every part of the engine is handed: the store, the clock, names and limits; and how a write is persisted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from legato.errors import JournalUnavailable
from legato.journal import Journal
from legato.settings import Settings

log = logging.getLogger("legato.engine")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Runtime:
    """`clock` gives ms since 1970, `nonce` a name never given before, `instance` is this process's name."""

    journal: Journal
    settings: Settings
    clock: Callable[[], int]
    nonce: Callable[[], str]
    instance: str

    @property
    def lease_ms(self) -> int:
        return int(self.settings.lease * 1000)

    @property
    def ttl_ms(self) -> int:
        return int(self.settings.ttl * 1000)

    @property
    def retention_ms(self) -> int:
        return int(self.settings.retention * 1000)


async def persist(attempt: Callable[[], Awaitable[T]], within: float | None = None) -> T:
    """Repeats `attempt` while the journal does not answer, for `within` seconds at most (None: for ever).

    `attempt` must be the same write every time, byte for byte. Raises what it raises, JournalUnavailable at the end.
    """
    loop = asyncio.get_running_loop()
    until = None if within is None else loop.time() + within
    pause = 0.05
    while True:
        try:
            return await attempt()
        except JournalUnavailable as silent:
            if until is not None and loop.time() + pause > until:
                raise
            log.warning("the journal does not answer, trying again: %s", silent)
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, 2.0)
