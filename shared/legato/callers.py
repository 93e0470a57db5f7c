"""Whether those who read here, by streams or long polls, still stand: each is asked about, however many it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from legato.auth import Verifier
from legato.foreign import FAILURES, cancelled
from legato.principal import Principal

log = logging.getLogger("legato.callers")

CHECK_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Watch:
    """`revoke`: how to close each of the caller's streams. `fallen`: by what was heard last, it does not stand."""

    revoke: set[Callable[[], None]] = field(default_factory=set)
    fallen: bool = False


class Callers:
    """Asks `verifier` of a caller when it opens a stream or polls, and every `interval` seconds while it has either; 0:
    never.

    What it opens within that time is not asked about again, and is closed at once where it does not stand.
    """

    def __init__(self, verifier: Verifier, interval: float) -> None:
        self._verifier = verifier
        self._interval = interval
        self._watches: dict[Principal, _Watch] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def enter(self, caller: Principal, revoke: Callable[[], None]) -> None:
        """`revoke` is called if the caller does not stand any more."""
        if not self._interval:
            return
        who = _whoever(caller)
        watch = self._watches.get(who) or self._begin(who)
        watch.revoke.add(revoke)
        if watch.fallen:
            revoke()

    def leave(self, caller: Principal, revoke: Callable[[], None]) -> None:
        if watch := self._watches.get(_whoever(caller)):
            watch.revoke.discard(revoke)

    def close(self) -> None:
        for asking in self._asking:
            asking.cancel()

    def _begin(self, who: Principal) -> _Watch:
        watch = self._watches[who] = _Watch()
        asking = asyncio.create_task(self._keep_asking(who, watch))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        return watch

    async def _keep_asking(self, who: Principal, watch: _Watch) -> None:
        while watch.revoke:
            watch.fallen = not await self._stands(who, known=not watch.fallen)
            if watch.fallen:
                for revoke in tuple(watch.revoke):
                    revoke()
            await asyncio.sleep(self._interval)
        del self._watches[who]

    async def _stands(self, who: Principal, known: bool) -> bool:
        """What is known stands while there is no answer."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await self._verifier.stands(who)
        except FAILURES as silent:
            if cancelled():
                raise
            kind = type(silent).__name__  # and nothing of its words, in which a token may be
            log.warning("whether a caller still stands is not known (%s); its streams stay as they are", kind)
            return known


def _whoever(caller: Principal) -> Principal:
    """The caller whichever of its tokens it came with."""
    return replace(caller, expires_at=None)
