"""A gateway whose answers a test writes down: what the faces are tried with, without a journal or an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from legato.auth import Developers, Verifier
from legato.engine.run import Started, StartTurn
from legato.events import Cursor
from legato.gateway import Decided, Gateway
from legato.journal import Place, SessionKey, TurnRecord
from legato.principal import Principal
from legato.quota import Quota
from legato.settings import Settings
from legato.stream import Stream


class ScriptedStream(Stream):
    """Gives `frames`, then ends, or waits for its reader to leave when `endless`."""

    def __init__(self, frames: list[bytes | Exception], *, endless: bool = False) -> None:
        self.id, self.session, self.turn = "st_1", "s1", "t1"
        self._script, self._endless = frames, endless
        self.closed = threading.Event()
        self.given = 0

    def frames(self) -> AsyncGenerator[bytes, None]:
        self._given = self._give()  # held here, so that only its reader closes it, and never the garbage collector
        return self._given

    async def _give(self) -> AsyncGenerator[bytes, None]:
        try:
            for frame in self._script:
                if isinstance(frame, Exception):
                    raise frame
                self.given += 1
                yield frame
            if self._endless:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


class ScriptedGateway(Gateway):
    """`calls` is what was asked, by method; `error` is raised by every call; `stream` None is the answer 204."""

    def __init__(self) -> None:
        self.quota = Quota(Settings(streams_open=0), lambda: 0)
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.stream: ScriptedStream | None = ScriptedStream([b"one", b"two"])
        self.ended = False
        self.callers: list[Principal | None] = []
        """Whose token every stream and long poll was opened with."""

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error

    async def start(self, key: SessionKey, request: StartTurn) -> Started:
        self._called("start", key, request)
        record = TurnRecord(request.turn, "streaming", request.agent or "agent", request.input, 1, 0, 0)
        return Started(record, created=True)

    def attach(self, key: SessionKey, started: Started, caller: Principal | None = None) -> ScriptedStream:
        assert self.stream
        self.callers.append(caller)
        self._called("attach", key, started.record.turn)
        return self.stream

    async def follow(
        self,
        key: SessionKey,
        *,
        cursor: Cursor | None,
        start: bool,
        turn: str | None,
        caller: Principal | None = None,
    ) -> ScriptedStream | None:
        self.callers.append(caller)
        self._called("follow", key, cursor, start, turn)
        return self.stream

    async def poll(
        self,
        key: SessionKey,
        *,
        cursor: Cursor | None,
        start: bool,
        turn: str | None,
        wait: float,
        caller: Principal | None = None,
    ) -> dict[str, Any] | None:
        self.callers.append(caller)
        self._called("poll", key, cursor, start, turn, wait)
        return {"events": [], "cursor": "1-1", "more": False} if self.stream else None

    async def snapshot(self, key: SessionKey, before: int | None) -> dict[str, Any]:
        self._called("snapshot", key, before)
        return {"cursor": "3-7", "session": key.session, "turns": [], "active": None}

    async def sessions(self, uid: str, before: Place | None, limit: int) -> dict[str, Any]:
        self._called("sessions", uid, before, limit)
        return {"sessions": []}

    async def cancel(self, key: SessionKey, turn: str, reason: str, by: str) -> bool:
        self._called("cancel", key, turn, reason, by)
        return self.ended

    async def decide(self, key: SessionKey, turn: str, request: str, approved: bool, note: str | None) -> Decided:
        self._called("decide", key, turn, request, approved, note)
        return Decided(TurnRecord(turn, "waiting", "agent", "hello", 1, 0, 0), again=self.ended, waited_at=5)

    async def prolong(self, key: SessionKey, stream: str, caller: Principal) -> None:
        self._called("prolong", key, stream, caller)

    async def supply(self, key: SessionKey, turn: str, name: str, value: str, expires_in: float | None) -> Decided:
        self._called("supply", key, turn, name, value, expires_in)
        return Decided(TurnRecord(turn, "waiting", "agent", "hello", 1, 0, 0), again=self.ended, waited_at=5)

    def follow_decided(
        self, key: SessionKey, decided: Decided, cursor: Cursor | None, caller: Principal | None = None
    ) -> ScriptedStream:
        assert self.stream
        self.callers.append(caller)
        self._called("follow_decided", key, decided.record.turn, cursor)
        return self.stream

    async def delete(self, key: SessionKey) -> None:
        self._called("delete", key)

    def health(self) -> dict[str, Any]:
        self._called("health")
        return {"status": "ok"}


@dataclass
class Stage:
    """What a face serves here; `build` gives it to the face."""

    gateway: ScriptedGateway = field(default_factory=ScriptedGateway)
    settings: Settings = field(default_factory=lambda: Settings(origins="https://app.example.com", body_bytes=2000))
    verifier: Verifier = field(default_factory=lambda: Developers(lambda: 0))
    instance: str = "i1"
    built: int = 0
    broken: Exception | None = None
    drained: bool = False
    closed: bool = False

    def build(self) -> Stage:
        self.built += 1
        if self.broken:
            raise self.broken
        return self

    async def drain(self) -> None:
        self.drained = True

    async def close(self) -> None:
        self.closed = True
