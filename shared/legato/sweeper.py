"""Goes on with turns that nobody owns and no client asks for, and ends questions that nobody answered in time.

Any number of sweeps may run at once, beside any number of owners: the fence of a takeover says who has a turn. A turn
that cannot be taken over is tried once per sweep, and those behind it are not kept waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from legato.engine.live import LiveTurn
from legato.engine.run import Engine
from legato.engine.runtime import Runtime, answer
from legato.errors import LegatoError
from legato.journal import SessionKey

log = logging.getLogger("legato.sweeper")

HAND_BACK_SECONDS: Final = 30.0
"""How long a sweep that is out of time waits until its turns have been handed back, above all for `once` tools."""

Fate = Literal["ended", "waiting", "handed_back", "lost", "elsewhere", "refused"]
_FATES: Final[dict[str | None, Fate]] = {"ended": "ended", "suspended": "waiting", "draining": "handed_back"}


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of the turns that one sweep `found`, and the seconds that it took.

    `ended`; `waiting` for a person; `handed_back` when time was up, a `once` tool in doubt under what is left of its
    lease; `lost` to another owner or for want of a journal; gone on with `elsewhere` before this one came to it;
    `refused`, which the log explains; still `running` here under its lease, such as a `once` tool that takes long.
    """

    found: int = 0
    ended: int = 0
    waiting: int = 0
    handed_back: int = 0
    lost: int = 0
    elsewhere: int = 0
    refused: int = 0
    running: int = 0
    seconds: float = 0.0

    def figures(self) -> dict[str, Any]:
        return asdict(self)


class Sweeper:
    """Sweeps for one engine: `LEGATO_SWEEP_TURNS` at a time, `LEGATO_SWEEP_SECONDS` long at most, then hands back."""

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine
        self._working: set[asyncio.Task[None]] = set()

    async def sweep(self) -> Swept:
        """Goes on with what is left alone until nothing is or time is up, and HAND_BACK_SECONDS longer at the most.

        Raises JournalUnavailable, JournalRejected.
        """
        loop, settings = asyncio.get_running_loop(), self._runtime.settings
        began = loop.time()
        sweep = _Sweep(self._runtime, self._engine, began + settings.sweep_seconds)
        if await sweep.look():
            workers = [asyncio.create_task(self._work(sweep)) for _ in range(settings.sweep_turns)]
            self._working.update(workers)
            for worker in workers:
                worker.add_done_callback(self._working.discard)
            await asyncio.wait(workers, timeout=settings.sweep_seconds + HAND_BACK_SECONDS)
        return sweep.told(loop.time() - began)

    async def close(self) -> None:
        """Looks after nothing any more; what still runs is the engine's to close."""
        for worker in self._working:
            worker.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def _work(self, sweep: _Sweep) -> None:
        while key := await sweep.next():
            sweep.fates[await self._go_on(key, sweep.until)] += 1

    async def _go_on(self, key: SessionKey, until: float) -> Fate:
        try:
            live = await self._engine.take_over(key)
        except Exception:
            log.exception("session %s of %s cannot be taken over", key.session, key.uid)
            return "refused"
        return await self._see_off(live, until) if live else "elsewhere"

    async def _see_off(self, live: LiveTurn, until: float) -> Fate:
        """Returns when this instance has nothing to do with the turn any more, which it gives back when time is up."""
        try:
            async with asyncio.timeout_at(until):
                await live.over.wait()
        except TimeoutError:
            live.hand_back()
            await live.over.wait()
        again = self._engine.live.get(live.key)
        if again and again.id == live.id:  # it waited, and what it waited for had come
            return await self._see_off(again, until)
        return _FATES.get(live.writer.feed.closed, "lost")


class _Sweep:
    """What one sweep has found and has to do until the loop's time `until`, and what came of it."""

    def __init__(self, runtime: Runtime, engine: Engine, until: float) -> None:
        self.until = until
        self.fates: Counter[str] = Counter()
        self._runtime = runtime
        self._engine = engine
        self._looking = asyncio.Lock()
        self._more = True
        self._left: deque[SessionKey] = deque()
        self._tried: set[SessionKey] = set()
        self._found = 0

    async def next(self) -> SessionKey | None:
        """One that nobody has tried in this sweep; None when there is none, or no time for it."""
        async with self._looking:
            if self._late:
                return None
            if not self._left and self._more:
                try:
                    await self.look()
                except LegatoError as failure:
                    log.warning("the rest is left to the next sweep: %s", failure)
                    self._more = False
            if not self._left:
                return None
            self._found += 1
            return self._left.popleft()

    async def look(self) -> bool:
        """Something was left alone. Those tried before are asked for again only to see what stands behind them."""
        limit = self._runtime.settings.sweep_turns + len(self._tried)
        orphans = await answer(self._runtime.journal.orphans, self._runtime.clock(), limit)
        self._left.extend(key for key in orphans if key not in self._tried)
        self._tried.update(orphans)
        self._more = len(orphans) == limit
        return bool(self._left)

    def told(self, seconds: float) -> Swept:
        running = self._found - self.fates.total()
        return Swept(self._found, **self.fates, running=running, seconds=round(seconds, 3))

    @property
    def _late(self) -> bool:
        return self._engine.draining or asyncio.get_running_loop().time() >= self.until
