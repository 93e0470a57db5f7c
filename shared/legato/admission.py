"""How long a stream may be read: until a little before its caller's token ends, unless a fresh one came in time.

Rules of this file:
- A token ends by the wall clock, which is read again before anything is sent; what waits, waits by the loop's clock.
- A stream ends before its token does. What is not known by then, because nobody told or the journal does not answer,
  prolongs nothing.
- Nothing here holds up a stream's events, and a stream that ends ahead of its token writes and reads nothing.
- Whoever brings a fresh token may reach any instance: it is left in the journal, where the stream's own looks for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from pydantic_core import from_json, to_json

from legato import sse
from legato.auth import Verifier
from legato.callers import Callers
from legato.engine.calls import ended
from legato.engine.runtime import ANSWER_SECONDS, Runtime, answer, persist
from legato.errors import Conflict, LegatoError, NotFound
from legato.journal import Commit, Private, SessionKey
from legato.principal import Principal

log = logging.getLogger("legato.admission")

AHEAD_MS: Final = 60_000
MARGIN_MS: Final = 5_000
LOOK_MS: Final = 2_000
_NAME: Final = "auth"


class Terms(NamedTuple):
    """What is due when while no fresh token comes: the client is told, the journal asked, the stream closed. In ms
    since 1970."""

    telling: int
    looking: int
    closing: int


def terms(expires_at: int | None, now: int, chance: float) -> Terms | None:
    """Those of a token that ends at `expires_at`; for what is left of a short one in proportion. None: it never ends.
    `chance` is from [0, 1)."""
    if expires_at is None:
        return None
    life = max(0, expires_at - now)
    closing = expires_at - round(min(MARGIN_MS, life / 5) * (0.5 + chance / 2))
    return Terms(expires_at - min(AHEAD_MS, life // 2), closing - min(LOOK_MS, life // 10), closing)


def _seconds(terms: Terms | None, now: int) -> float:
    return max(0, terms.closing - now) / 1000 if terms else math.inf


def fresher(expires_at: int | None, known: int | None) -> bool:
    """A token that ends at the one lasts longer than a token that ends at the other; None is never."""
    return known is not None and (expires_at is None or expires_at > known)


class Admission:
    """That of one stream, named `stream`. It begins and ends with it."""

    def __init__(self, runtime: Runtime, key: SessionKey, stream: str, caller: Principal, callers: Callers) -> None:
        self.stream = stream
        self._runtime = runtime
        self._key = key
        self._caller = caller
        self._callers = callers
        self._revoked = False
        self._notice: bytes | None = None
        self._prolonging: asyncio.Task[None] | None = None
        self._wake: Callable[[], None] = _nobody
        self._begin(caller.expires_at)

    def begin(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to look at here."""
        self._wake = wake
        self._callers.enter(self._caller, self._revoke)
        if self._terms:
            self._prolonging = asyncio.create_task(self._prolong())

    def end(self) -> None:
        self._callers.leave(self._caller, self._revoke)
        if self._prolonging:
            self._prolonging.cancel()

    @property
    def over(self) -> bool:
        return self._revoked or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds until the stream has to be closed, as far as is known."""
        return _seconds(self._terms, self._runtime.clock())

    def notice(self) -> bytes | None:
        """The frame that the client has to be sent now, once."""
        notice, self._notice = self._notice, None
        return notice

    def _begin(self, expires_at: int | None) -> None:
        self._expires_at = expires_at
        self._terms = terms(expires_at, self._runtime.clock(), random.random())

    def _revoke(self) -> None:
        self._revoked = True
        self._wake()

    async def _prolong(self) -> None:
        """From token to token, until no fresh one has come."""
        writing: asyncio.Task[Commit] | None = None
        try:
            while self._terms:
                await self._until(self._terms.telling)
                if writing is None:
                    kept = _document(self._runtime, self.stream, _Left(self._expires_at))
                    writing = asyncio.create_task(persist(self._runtime.journal.commit, self._key, kept))
                    await asyncio.shield(writing)
                elif await self._prolonged():
                    continue
                self._notice = sse.control("auth.expiring", {"expires_at": self._expires_at})
                self._wake()
                await self._until(self._terms.looking)
                if not await self._prolonged():
                    return
        except Exception:
            log.exception("session %s: stream %s cannot be prolonged", self._key.session, self.stream)
        finally:
            if writing:
                await ended(asyncio.create_task(self._forget(writing)))

    async def _until(self, at: int) -> None:
        """The wall clock may be set meanwhile: nobody sleeps through that."""
        while (left := at - self._runtime.clock()) > 0:  # noqa: ASYNC110 - a clock tells nobody
            await asyncio.sleep(min(left / 1000, self._runtime.settings.ping))

    async def _prolonged(self) -> bool:
        """A fresher token has been left."""
        found = await persist(_left, self._runtime, self._key, self.stream)
        if found is None or not fresher(found.expires_at, self._expires_at):
            return False
        self._begin(found.expires_at)
        return True

    async def _forget(self, writing: asyncio.Task[Commit]) -> None:
        """A document that is still being written might arrive after its deletion."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.gather(writing, return_exceptions=True)
        try:
            await self._runtime.journal.commit(self._key, _document(self._runtime, self.stream, None))
        except LegatoError as left:
            log.info("session %s: stream %s leaves its document to expire: %s", self._key.session, self.stream, left)


class Admissions:
    """Those of one instance."""

    def __init__(self, runtime: Runtime, verifier: Verifier) -> None:
        self._runtime = runtime
        self._callers = Callers(verifier, runtime.settings.auth_check)

    def of(self, key: SessionKey, caller: Principal | None) -> Admission:
        """For a new stream, which it names. Without a `caller` for as long as it likes."""
        return Admission(self._runtime, key, self._runtime.nonce(), caller or Principal(key.uid), self._callers)

    def close(self) -> None:
        self._callers.close()

    def patience(self, caller: Principal) -> float:
        """Seconds for which it may be let wait for one answer."""
        now = self._runtime.clock()
        return _seconds(terms(caller.expires_at, now, random.random()), now)

    @contextmanager
    def asked_about(self, caller: Principal) -> Iterator[asyncio.Event]:
        """Around a long poll, as a stream's caller is asked about. The event comes when it does not stand any more."""
        fallen = asyncio.Event()
        self._callers.enter(caller, fallen.set)
        try:
            yield fallen
        finally:
            self._callers.leave(caller, fallen.set)

    async def prolong(self, key: SessionKey, stream: str, expires_at: int | None) -> None:
        """Leaves word of a token for a stream on any instance; one that is no fresher changes nothing.

        Raises NotFound where no such stream of the session has told of its token's end.
        """
        gone = NotFound(f"no stream {stream!r} of session {key.session!r} waits for a token")
        found = await answer(_left, self._runtime, key, stream)
        if found is None:
            raise gone
        if fresher(expires_at, found.expires_at):
            left = _document(self._runtime, stream, _Left(expires_at), stands=True)
            try:
                await answer(self._runtime.journal.commit, key, left)
            except Conflict:
                raise gone from None


class _Left(NamedTuple):
    """What is left for a stream: when its caller's token ends (ms since 1970, None: never)."""

    expires_at: int | None


async def _left(runtime: Runtime, key: SessionKey, stream: str) -> _Left | None:
    texts = await runtime.journal.private(key, _owner(stream), runtime.clock())
    return _Left(**from_json(texts[_NAME])) if _NAME in texts else None


def _document(runtime: Runtime, stream: str, left: _Left | None, *, stands: bool = False) -> Commit:
    """It is kept for as long as a stream may live; None deletes it. `stands`: one that the stream has deleted since is
    not written again."""
    expires_at = runtime.clock() + int(runtime.settings.deadline * 1000)
    text = to_json(left._asdict()).decode() if left else None
    return Commit(private=(Private(_owner(stream), _NAME, text, expires_at, stands),))


def _owner(stream: str) -> str:
    """Stands in place of a turn's id, which it can never be: one read gives one stream's."""
    return f"stream.{stream}"


def _nobody() -> None:
    """Before a stream begins nobody waits."""
