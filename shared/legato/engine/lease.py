"""The lease this instance holds on one session: renewed while it lasts, lost for good once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from legato.engine.runtime import Runtime, persist
from legato.errors import Conflict, JournalRejected, LeaseLost
from legato.journal import Commit, Lease, Private, SessionKey

log = logging.getLogger("legato.engine")


class Holding:
    """One epoch of one session. `lost` is set when another owner has it; nothing is written after that."""

    def __init__(self, runtime: Runtime, key: SessionKey, lease: Lease) -> None:
        self.lease = lease
        self.lost = asyncio.Event()
        self.lock = asyncio.Lock()
        self._runtime = runtime
        self._key = key

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
            await asyncio.sleep(self._runtime.settings.lease / 3)
            try:
                await self.renew()
            except JournalRejected as refused:  # the next renewal may be taken; if none is, the lease runs out
                log.error("session %s: the lease cannot be renewed: %s", self._key.session, refused)

    async def assure(self) -> None:
        """Returns when the lease is live, renewing it if it has run out.

        An owner past its expiry must not append before that: where TTL has emptied the journal, the position it would
        create is free although another epoch has begun. Raises LeaseLost.
        """
        while not self.live:
            await self.renew()

    async def renew(self) -> None:
        """Raises LeaseLost when another owner has taken the session over; waits while the journal is silent."""
        async with self.lock:
            while True:
                self.check()
                expires_at = self._runtime.clock() + self._runtime.lease_ms
                wanted = replace(self.lease, expires_at=expires_at, commit=self._runtime.nonce())
                try:
                    self.lease = await persist(self._runtime.journal.renew, self._key, wanted)
                    return
                except Conflict:
                    await self.reread()
                except LeaseLost:
                    self.lose()
                    raise

    async def keep_private(self, private: Sequence[Private]) -> None:
        """Commits what no event goes with, together with a renewed lease. Raises LeaseLost."""
        while True:
            await self.assure()
            async with self.lock:
                self.check()
                expires_at = self._runtime.clock() + self._runtime.lease_ms
                wanted = replace(self.lease, expires_at=expires_at, commit=self._runtime.nonce())
                try:
                    written = await persist(
                        self._runtime.journal.commit, self._key, Commit(lease=wanted, private=tuple(private))
                    )
                except Conflict:
                    await self.reread()
                else:
                    assert written.lease
                    self.lease = written.lease
                    return

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
