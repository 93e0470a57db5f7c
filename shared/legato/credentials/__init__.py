"""The tokens that tools present to what they call: fetched once for all who ask, and again ahead of their expiry.

Rules of this file:
- A token is handed to a tool, or put into the header of its request, and to nothing else: no message, no log line and
  no repr has anything of it, nor of what a source says when it fails.
- However many ask, one fetch is under way; who is cancelled takes nothing from the others.
- A token that still counts is used where a fresh one cannot be had.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import httpx

from legato.errors import ToolFailed
from legato.foreign import FAILURES, cancelled
from legato.text import brief

log = logging.getLogger("legato.credentials")
UNAVAILABLE: Final = "credential_unavailable"
UNKNOWN: Final = "credential_unknown"
FETCH_SECONDS: Final = 20.0
"""How long a source may take to give a token."""
AHEAD_MS: Final = 225_000
"""A token is fetched anew this long before its expiry, or in the last quarter of a shorter life."""
IN_TRANSIT_MS: Final = 10_000
"""A token is not presented any more this long before its expiry, or in the last tenth of a shorter life."""
PAUSE_MS: Final = 500
PAUSE_MS_MAX: Final = 30_000


@dataclass(frozen=True, slots=True)
class Token:
    """What is presented, and until when it counts: `expires_at` in ms since 1970, None for good."""

    value: str = field(repr=False)
    expires_at: int | None = None


class Source(Protocol):
    """Where tokens come from. It keeps none: `Shared` does."""

    async def fetch(self) -> Token:
        """A fresh token. It may raise whatever it likes: a ToolFailed is told to the tool, of anything else only the
        name of its class."""


class Shared:
    """The token of one source, for all who ask in this event loop. `clock` gives ms since 1970."""

    def __init__(self, name: str, source: Source, clock: Callable[[], int]) -> None:
        self._name, self._source, self._clock = name, source, clock
        self._token: Token | None = None
        self._again_at = self._stale_at = 0.0
        self._pause = PAUSE_MS
        self._failure = self._unavailable("it expires as soon as it is given")
        self._fetching: asyncio.Task[Token | None] | None = None

    async def token(self) -> Token:
        """A token that counts. Raises ToolFailed (`credential_unavailable`, or what the source says)."""
        now, given = self._clock(), self._token
        if given is None or not _counts(given, now):
            given = await asyncio.shield(self._fetch())
        elif now >= self._again_at:
            fetching = self._fetch()
            if now >= self._stale_at:
                given = await asyncio.shield(fetching) or given
        if given and _counts(given, self._clock()):
            return given
        raise ToolFailed(*self._failure)

    async def instead_of(self, token: Token) -> Token:
        """What to present after `token` was not taken: fetched anew unless another one has come meanwhile. A source may
        give the same again. Raises ToolFailed as `token` does."""
        if token is self._token:
            self._token = None
        return await self.token()

    def _fetch(self) -> asyncio.Task[Token | None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetched(), name=f"credential {self._name}")
        return self._fetching

    async def _fetched(self) -> Token | None:
        """None: it failed, and `_failure` says how."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                token = await self._source.fetch()
            self._take(token)
        except ToolFailed as failed:
            self._failed(failed.code, failed.message)
        except FAILURES as error:
            if cancelled():
                raise
            self._failed(*self._unavailable(type(error).__name__))
        else:
            return token
        return None

    def _take(self, token: Token) -> None:
        now = self._clock()
        life = math.inf if token.expires_at is None else token.expires_at - now
        if life <= 0:
            raise ToolFailed(*self._unavailable("it had expired when it was given"))
        self._token, self._pause = token, PAUSE_MS
        self._again_at = now + life - min(AHEAD_MS, life / 4)
        self._stale_at = now + life - min(IN_TRANSIT_MS, life / 10)

    def _unavailable(self, why: str) -> tuple[str, str]:
        return UNAVAILABLE, f"credential {self._name!r} cannot be had: {why}"

    def _failed(self, code: str, message: str) -> None:
        log.warning("credential %r: %s: %s", self._name, code, message)
        self._failure = (code, message)
        self._again_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, PAUSE_MS_MAX)


def _counts(token: Token, now: int) -> bool:
    return token.expires_at is None or now < token.expires_at


class Credential(httpx.Auth):
    """A credential of one call. `await` it for the token's text; in a sync tool, which runs in a thread, `get` it.

    As the `auth` of an httpx request, async or sync, it is sent as `Authorization: Bearer`. Where the answer is 401
    that request is sent once more with a fresh token; so the whole of its body is kept until then.
    """

    def __init__(self, name: str, shared: Shared, loop: asyncio.AbstractEventLoop | None) -> None:
        """`loop` is the one that `shared` is asked in; None is the one of whoever awaits."""
        self._name, self._shared, self._loop = name, shared, loop

    def __repr__(self) -> str:
        return f"Credential({self._name!r})"

    def __await__(self) -> Generator[Any, None, str]:
        return self._text().__await__()

    def get(self) -> str:
        """The token's text; blocks its thread. Raises ToolFailed, and RuntimeError in the event loop."""
        return self._blocking(self._shared.token()).value

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        await request.aread()
        token = await self._asked(self._shared.token())
        response = yield self._presented(request, token)
        if _refused(response, request):
            fresh = await self._asked(self._shared.instead_of(token))
            if fresh.value != token.value:
                yield self._presented(request, fresh)

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.read()
        token = self._blocking(self._shared.token())
        response = yield self._presented(request, token)
        if _refused(response, request):
            fresh = self._blocking(self._shared.instead_of(token))
            if fresh.value != token.value:
                yield self._presented(request, fresh)

    async def _text(self) -> str:
        return (await self._asked(self._shared.token())).value

    async def _asked(self, asking: Coroutine[Any, Any, Token]) -> Token:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    def _blocking(self, asking: Coroutine[Any, Any, Token]) -> Token:
        if self._loop is None or self._loop is _running_loop():
            asking.close()
            raise RuntimeError(f"credential {self._name!r}: await it here; only a sync tool may block for it")
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result(2 * FETCH_SECONDS)

    def _presented(self, request: httpx.Request, token: Token) -> httpx.Request:
        if not re.fullmatch("[!-~]+", token.value):  # else whoever refuses the header would quote it
            raise ToolFailed(UNAVAILABLE, f"credential {self._name!r} cannot be sent in a header")
        request.headers["Authorization"] = f"Bearer {token.value}"
        return request


def _refused(response: httpx.Response, request: httpx.Request) -> bool:
    """By who was shown the token: one that the request was redirected to may have seen none."""
    shown = response.request.headers.get("Authorization")
    return response.status_code == 401 and shown == request.headers["Authorization"]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def unknown(name: str) -> ToolFailed:
    """There is no credential of this name."""
    return ToolFailed(UNKNOWN, f"there is no credential {brief(name)!r}; LEGATO_CREDENTIALS names those that there are")
