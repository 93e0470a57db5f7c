"""The keys that a vendor publishes to verify its tokens with: fetched when they are needed, kept while it says so.

Rules of this file:
- One request is under way at a time, however many callers wait for it, and the next one not before a pause.
- While the vendor cannot be reached its keys are used beyond their time. What is not among them then is not unknown:
  nobody can tell.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import httpx

from legato.errors import KeysUnavailable

log = logging.getLogger("legato.auth")

FETCH_SECONDS: Final = 5.0
PATIENCE: Final = 0.5
"""Seconds that the holder of a known key waits to hear whether it still is one."""
PAUSE_MS: Final = 10_000
PAUSE_AFTER_FAILURE_MS: Final = 1_000
AGE_SECONDS: Final = 3600
"""How long keys are kept of which the vendor does not say."""
MOST_SECONDS: Final = 86400
K = TypeVar("K")


class Keys(Generic[K]):
    """Those of the JSON document at `url`, of which `read` makes keys by their ids, or raises whatever it likes.

    `clock` is in ms. `http` is used for one request at a time, which may take so many `seconds`.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[Any], Mapping[str, K]],
        http: httpx.AsyncClient,
        clock: Callable[[], int],
        seconds: float = FETCH_SECONDS,
    ) -> None:
        self._url, self._read, self._http, self._clock, self._seconds = url, read, http, clock, seconds
        self._keys: Mapping[str, K] = {}
        self._reached = False
        self._stale_at = self._not_before = 0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, name: str) -> K | None:
        """The key of that id, or None where there is none. Raises KeysUnavailable."""
        if name not in self._keys:
            await self._renew(patience=None)
        elif self._clock() >= self._stale_at:
            await self._renew(PATIENCE)
        if name not in self._keys and not self._reached:
            raise KeysUnavailable("the keys that tokens are verified with cannot be had now; try again")
        return self._keys.get(name)

    async def _renew(self, patience: float | None) -> None:
        if self._fetching is None and self._clock() >= self._not_before:
            self._fetching = asyncio.create_task(self._fetch())
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=patience)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                answer = (await self._http.get(self._url)).raise_for_status()
            self._keys, self._reached = self._read(answer.json()), True
            self._stale_at = self._clock() + 1000 * lifetime(answer.headers)
        except Exception as failed:
            self._reached = False
            log.warning("the keys at %s cannot be had: %r", self._url, failed)
        finally:
            self._not_before = self._clock() + (PAUSE_MS if self._reached else PAUSE_AFTER_FAILURE_MS)
            self._fetching = None


def lifetime(headers: Mapping[str, str]) -> int:
    """Seconds for which an answer is fresh, a day at most. Source: RFC 9111, 4.2.1 and 5.1."""
    said = re.search(
        r"(?:^|[\s,])max-age=\"?([0-9]{1,9})\b", headers.get("cache-control", ""), re.ASCII | re.IGNORECASE
    )
    age = re.fullmatch(r"[0-9]{1,9}", headers.get("age", ""), re.ASCII)
    fresh = int(said[1]) if said else AGE_SECONDS
    return max(0, min(fresh - (int(age[0]) if age else 0), MOST_SECONDS))
