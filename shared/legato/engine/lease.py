"""The lease this instance holds on one session: renewed while it lasts, lost for good once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from legato.engine.asking import noted
from legato.engine.endings import answered
from legato.engine.runtime import Runtime, persist
from legato.errors import Conflict, JournalRejected, LeaseLost
from legato.journal import Commit, Decision, Lease, Private, SessionKey

log = logging.getLogger("legato.engine")


class Holding:
    """One epoch of one session. `lost` is set when another owner has it; nothing is written after that."""

    def __init__(self, runtime: Runtime, key: SessionKey, lease: Lease) -> None:
        self.lease = lease
        self.lost = asyncio.Event()
        self.lock = asyncio.Lock()
        self._runtime = runtime
        self._key = key
        self._leaving = False
        self._early = asyncio.Event()

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    @property
    def live(self) -> bool:
        """By this instance's own clock the lease has not run out."""
        return not self.lost.is_set() and self._runtime.clock() < self.lease.expires_at

    async def keep(self) -> None:
        """Renews three times per lease, until it is lost."""
        while not self.lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._runtime.settings.lease / 3):
                    await self._early.wait()
            self._early.clear()
            try:
                await self.renew()
            except JournalRejected as refused:  # the next renewal may be taken; if none is, the lease runs out
                log.error("session %s: the lease cannot be renewed: %s", self._key.session, refused)

    def leave(self) -> None:
        """Takes this instance's name off the lease, at once and for as long as it is renewed still: it ends under a
        tool that may not be stopped, and is no owner that was lost."""
        self._leaving = True
        self._early.set()

    async def assure(self) -> None:
        """Returns when the lease is live, renewing it if it has run out.

        An owner past its expiry must not append before that: where TTL has emptied the journal, the position it would
        create is free although another epoch has begun. Raises LeaseLost.
        """
        while not self.live:
            await self.renew()

    async def renew(self) -> None:
        """Raises LeaseLost when another owner has taken the session over, or could not go on with it any more; waits
        while the journal is silent."""
        async with self.lock:
            while True:
                try:
                    self.lease = await persist(self._runtime.journal.renew, self._key, self._renewed())
                    return
                except Conflict:
                    await self.reread()
                except LeaseLost:
                    self.lose()
                    raise

    async def keep_private(self, private: Sequence[Private]) -> None:
        """Commits what no event goes with, together with a renewed lease. Raises LeaseLost."""
        while not await self._commit(Commit(private=tuple(private))):
            pass

    async def settle(self, request: str, decision: Decision) -> Decision:
        """The decision on a question of this turn that counts: the one that somebody has made, else this one, which
        `control` has then, so that a person who comes later is told. Raises LeaseLost."""
        runtime, turn = self._runtime, self.lease.turn
        while True:
            control = await persist(runtime.journal.control, self._key)
            if made := answered(control, turn).get(request):
                return made
            asked = noted(control, turn, request, decision, runtime.clock() + runtime.retention_ms)
            if await self._commit(Commit(control=asked)):
                return decision

    async def _commit(self, commit: Commit) -> bool:
        """Writes it together with a renewed lease; False: not as things stand. Raises LeaseLost."""
        await self.assure()
        async with self.lock:
            try:
                written = await persist(self._runtime.journal.commit, self._key, replace(commit, lease=self._renewed()))
            except Conflict:
                await self.reread()
                return False
            assert written.lease
            self.lease = written.lease
            return True

    def _renewed(self) -> Lease:
        """Raises LeaseLost, also where it ran out so long ago that nobody may go on with its turn: events are gone."""
        if self._runtime.forsaken(self.lease.expires_at):
            self.lose()
        self.check()
        expires_at = self._runtime.clock() + self._runtime.lease_ms
        owner = "" if self._leaving else self.lease.owner
        return replace(self.lease, owner=owner, expires_at=expires_at, commit=self._runtime.nonce())

    async def reread(self) -> None:
        """Takes up the stored lease's version after a write whose answer was lost. Raises LeaseLost."""
        standing = await persist(self._runtime.journal.standing, self._key)
        if standing.lease is None or standing.lease.epoch != self.epoch:
            self.lose()
            self.check()
        else:
            self.lease = standing.lease

    def lose(self) -> None:
        self.lost.set()

    def check(self) -> None:
        if self.lost.is_set():
            raise LeaseLost(f"epoch {self.epoch} of session {self._key.session} is over")
