"""What every part of the engine is handed: the store, the clock, names and limits; and how a write is persisted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from legato.credentials import Shared, unknown
from legato.errors import JournalUnavailable
from legato.journal import Journal
from legato.settings import Settings
from legato.vault import Vault

log = logging.getLogger("legato.engine")
T = TypeVar("T")
P = ParamSpec("P")

ANSWER_SECONDS: Final = 10.0
EXPIRY_MARGIN_MS: Final = 3_600_000
"""A turn left for the TTL less this is not gone on with: its events might expire meanwhile."""
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """`clock` gives ms since 1970, `nonce` a name never given before, `instance` is this process's name, `credentials`
    are those that tools may ask for by name."""

    journal: Journal
    settings: Settings
    clock: Callable[[], int]
    nonce: Callable[[], str]
    instance: str
    credentials: Mapping[str, Shared] = field(default_factory=dict)
    vault: Vault | None = None

    @property
    def lease_ms(self) -> int:
        return int(self.settings.lease * 1000)

    @property
    def ttl_ms(self) -> int:
        return int(self.settings.ttl * 1000)

    @property
    def approval_ms(self) -> int:
        return int(self.settings.approval * 1000)

    def credential(self, name: str) -> Shared:
        """Raises ToolFailed (`credential_unknown`)."""
        if known := self.credentials.get(name):
            return known
        raise unknown(name)

    def forsaken(self, ran_out: int) -> bool:
        """A lease that ran out then did so for too long ago to go on with its turn."""
        return self.clock() > ran_out + self.ttl_ms - EXPIRY_MARGIN_MS

    @property
    def keep_partial(self) -> bool:
        return self.settings.partial == "keep"

    @property
    def retention_ms(self) -> int:
        return int(self.settings.retention * 1000)


async def persist(attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Makes the same attempt until the journal answers. `args` are what is repeated, byte for byte.

    Raises what the attempt raises, but for JournalUnavailable.
    """
    pause = PAUSE_SECONDS
    while True:
        try:
            return await attempt(*args, **kwargs)
        except JournalUnavailable as silent:
            log.warning("the journal does not answer, trying again: %s", silent)
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, PAUSE_SECONDS_MAX)


async def answer(attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """`persist` for a request that somebody waits for: gives up after ANSWER_SECONDS with JournalUnavailable."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await persist(attempt, *args, **kwargs)
    except TimeoutError:
        raise JournalUnavailable("the journal does not answer; send the same request again") from None
