"""Instances of the engine in this process, over one real journal that can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

from legato import app, sse
from legato.agents import Turn
from legato.agents.adapt import as_agent
from legato.auth import Developers, Verifier
from legato.engine.live import LiveTurn
from legato.engine.run import Engine, Started, StartTurn
from legato.engine.runtime import Runtime
from legato.errors import JournalUnavailable
from legato.events import TERMINAL, Cursor, Record
from legato.gateway import Gateway
from legato.journal import (
    Commit,
    Control,
    Head,
    Journal,
    Lease,
    Place,
    Segment,
    SessionItem,
    SessionKey,
    Standing,
    TurnRecord,
    Version,
)
from legato.journal.sqlite import SqliteJournal
from legato.principal import Principal
from legato.settings import Settings
from legato.stream import Stream
from legato.vault import Vault

T = TypeVar("T")
KEY = SessionKey("ann", "s1")
PATIENCE = 10.0
"""Seconds after which a test that waits has failed."""

UNLIMITED: dict[str, Any] = {"turns_active": 0, "streams_open": 0, "turns_per_minute": 0}
SHORT: dict[str, Any] = {"flush": 0.02, "lease": 6, "pending_seconds": 0.2, "ping": 0.2} | UNLIMITED
VAULT = Vault([b"k" * 32])


class Clock:
    """Real time, moved by an offset: ms since 1970."""

    def __init__(self) -> None:
        self.offset = 0

    def __call__(self) -> int:
        return app.now() + self.offset

    def advance(self, seconds: float) -> None:
        self.offset += int(seconds * 1000)


class Gate:
    """Where calls of the journal stand until it is opened; `reached` is set when the first one does.

    With `after` they are made, and it is their answers that stand there.
    """

    def __init__(self, *, after: bool = False) -> None:
        self.after = after
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def stand(self) -> None:
        self.reached.set()
        await self._opened.wait()

    async def stood(self) -> None:
        """Returns when a call stands there. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            await self.reached.wait()

    def open(self) -> None:
        self._opened.set()


Fault = Gate | Exception | Literal["refuse", "lose"] | None
"""`refuse` before the call is made, or raise that; `lose` its answer once it was."""

Rule = Callable[[str], Fault]


class Flaky:
    """Passes every call on to a journal, but for the faults that `rule` gives for its name."""

    def __init__(self, journal: Journal) -> None:
        self.calls: list[str] = []
        self.segments: list[Segment] = []
        self.rule: Rule = _no_fault
        self._journal = journal

    def hold(self, name: str) -> Gate:
        gate = Gate()
        self.rule = lambda called: gate if called == name else None
        return gate

    def refuse(self, *names: str) -> None:
        """Every call, or those of these names, until `heal`."""
        self.rule = lambda called: "refuse" if not names or called in names else None

    def fail(self, failure: Exception) -> None:
        """Every call raises it, until `heal`."""
        self.rule = lambda called: failure

    def heal(self) -> None:
        self.rule = _no_fault

    async def _pass(self, name: str, method: Callable[..., Awaitable[T]], *args: Any) -> T:
        self.calls.append(name)
        fault = self.rule(name)
        if isinstance(fault, Gate) and not fault.after:
            await fault.stand()
        if isinstance(fault, Exception):
            raise fault
        if fault == "refuse":
            raise JournalUnavailable(f"{name} was refused")
        given = await method(*args)
        if isinstance(fault, Gate) and fault.after:
            await fault.stand()
        if fault == "lose":
            raise JournalUnavailable(f"the answer of {name} was lost")
        return given

    async def append(self, key: SessionKey, segment: Segment) -> None:
        self.segments.append(segment)
        await self._pass("append", self._journal.append, key, segment)

    async def renew(self, key: SessionKey, lease: Lease) -> Lease:
        return await self._pass("renew", self._journal.renew, key, lease)

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        if commit.segment:
            self.segments.append(commit.segment)
        return await self._pass("commit", self._journal.commit, key, commit)

    async def standing(self, key: SessionKey, *, trust_head: bool = False) -> Standing:
        """Makes use of all that `trust_head` lets a store leave out."""
        standing = await self._pass("standing", self._journal.standing, key)
        active = standing.head and standing.head.turn
        return replace(standing, last=0) if trust_head and not active else standing

    async def lease(self, key: SessionKey) -> Lease | None:
        return await self._pass("lease", self._journal.lease, key)

    async def control(self, key: SessionKey) -> Control | None:
        return await self._pass("control", self._journal.control, key)

    async def read(self, key: SessionKey, since: int, now: int, limit: int = 1000) -> list[Segment]:
        return await self._pass("read", self._journal.read, key, since, now, limit)

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        return await self._pass("private", self._journal.private, key, turn, now)

    async def turn(self, key: SessionKey, turn: str) -> TurnRecord | None:
        return await self._pass("turn", self._journal.turn, key, turn)

    async def turns(self, key: SessionKey, before: int | None, limit: int) -> list[TurnRecord]:
        return await self._pass("turns", self._journal.turns, key, before, limit)

    async def sessions(self, uid: str, before: Place | None, limit: int) -> list[SessionItem]:
        return await self._pass("sessions", self._journal.sessions, uid, before, limit)

    async def orphans(self, now: int, limit: int) -> list[SessionKey]:
        return await self._pass("orphans", self._journal.orphans, now, limit)

    async def purge(self, key: SessionKey, tombstone: Head) -> None:
        await self._pass("purge", self._journal.purge, key, tombstone)

    async def wait(self, key: SessionKey, after: int, head: Version, timeout: float) -> bool:
        return await self._pass("wait", self._journal.wait, key, after, head, timeout)

    async def wait_control(self, key: SessionKey, known: Version, timeout: float) -> bool:
        return await self._pass("wait_control", self._journal.wait_control, key, known, timeout)

    async def check(self) -> None:
        await self._pass("check", self._journal.check)

    async def close(self) -> None:
        await self._journal.close()


def _no_fault(name: str) -> Fault:
    return None


def nth(fault: Fault, number: int, *names: str) -> Rule:
    """`fault` at the `number`th call, from 1, of those of these names."""
    calls = count(1)
    return lambda called: fault if called in names and next(calls) == number else None


def every_other(fault: Fault, name: str) -> Rule:
    calls = count()
    return lambda called: fault if called == name and next(calls) % 2 == 0 else None


@dataclass(frozen=True)
class Instance:
    """One process's worth of Legato."""

    clock: Clock
    journal: Flaky
    runtime: Runtime
    engine: Engine
    gateway: Gateway

    async def start(self, script: Any = "", turn: str = "t1", key: SessionKey = KEY, **request: Any) -> Started:
        return await self.gateway.start(key, StartTurn(turn, script, **request))

    async def play(self, script: Any = "", turn: str = "t1", key: SessionKey = KEY) -> list[Record]:
        """Runs a turn to its end and gives the session's events."""
        await self.start(script, turn, key)
        await self.ended(turn, key)
        return await self.stored(key)

    def live(self, key: SessionKey = KEY) -> LiveTurn:
        return self.engine.live[key]

    async def shown(self, kind: str, count: int = 1, key: SessionKey = KEY) -> Record:
        """The `count`th event of this type that the live turn shows."""
        feed = self.live(key).writer.feed
        async with asyncio.timeout(PATIENCE):
            while True:
                records = (Record.of(sse.line(frame)) for frame in feed.after(feed.start, 10**9))
                found = [record for record in records if record.type == kind]
                if len(found) >= count:
                    return found[count - 1]
                assert not feed.closed, f"the turn is over here ({feed.closed}) without {kind}"
                await feed.wait(feed.last, PATIENCE)

    async def stored(self, key: SessionKey = KEY) -> list[Record]:
        segments = await self.journal._journal.read(key, 1, self.clock())
        return [record for segment in segments for record in segment.records()]

    async def record(self, turn: str = "t1", key: SessionKey = KEY) -> TurnRecord:
        found = await self.journal._journal.turn(key, turn)
        assert found
        return found

    async def ended(self, turn: str = "t1", key: SessionKey = KEY) -> TurnRecord:
        """The turn's record once it has ended in the journal and this instance has let go of it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.record(turn, key)
                if found.last is not None and not self._runs(turn, key):
                    return found
                await asyncio.sleep(0.005)

    def _runs(self, turn: str, key: SessionKey) -> bool:
        live = self.engine.live.get(key)
        return live is not None and live.id == turn

    async def follow(
        self,
        cursor: Cursor | None = None,
        turn: str | None = "t1",
        *,
        start: bool = False,
        key: SessionKey = KEY,
        caller: Principal | None = None,
    ) -> Client:
        """A reader's stream; `start` asks for everything."""
        stream = await self.gateway.follow(key, cursor=cursor, start=start, turn=turn, caller=caller)
        assert stream
        return Client(stream)

    async def close(self) -> None:
        self.journal.heal()
        await self.engine.close()
        await self.journal.close()


class Client:
    """One reader of a stream and what it was sent. It reads for as long as it is not told to leave."""

    def __init__(self, stream: Stream) -> None:
        self.id = stream.id
        self.chunks: list[bytes] = []
        self.messages: list[sse.Message] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Stream) -> None:
        decoder = sse.Decoder()
        async with aclosing(stream.frames()) as frames:
            async for chunk in frames:
                self.chunks.append(chunk)
                self.messages += decoder.feed(chunk)
                self._news.set()

    async def until(self, event: str, count: int = 1) -> sse.Message:
        """The `count`th frame of this type."""
        await self.sees(lambda: sum(message.event == event for message in self.messages) >= count)
        return [message for message in self.messages if message.event == event][count - 1]

    async def pinged(self, count: int = 1) -> None:
        await self.sees(lambda: self.chunks.count(sse.PING) >= count)

    async def sees(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self._news.wait()
                self._news.clear()

    async def end(self) -> list[sse.Message]:
        """What it was sent, once the stream has ended of itself."""
        async with asyncio.timeout(PATIENCE):
            await self._task
        return self.messages

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    @property
    def kinds(self) -> list[str]:
        return [message.event for message in self.messages]

    @property
    def data(self) -> list[str]:
        return [message.data for message in self.messages]


class Puppet:
    """An agent that does what its test does with `turn`, until `leave` or a cancellation."""

    def __init__(self) -> None:
        self._turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._left = asyncio.Event()

    async def __call__(self, turn: Turn) -> None:
        self._turn.set_result(turn)
        await self._left.wait()

    async def turn(self) -> Turn:
        return await asyncio.wait_for(asyncio.shield(self._turn), PATIENCE)

    def leave(self) -> None:
        self._left.set()


@dataclass
class Rig:
    """Instances over one journal file; closed together."""

    path: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def instance(
        self,
        agent: object,
        name: str | None = None,
        agents: Sequence[str] = ("agent", "second"),
        journal: Journal | None = None,
        verifier: Verifier | None = None,
        vault: Vault | None = VAULT,
        **settings: Any,
    ) -> Instance:
        """`agents` are the names under which it serves `agent`, `journal` another one than the file."""
        clock = Clock()
        flaky = Flaky(journal or SqliteJournal(self.path, clock=clock))
        wanted = Settings(**{**SHORT, **settings})
        runtime = Runtime(flaky, wanted, clock, lambda: uuid4().hex, name or uuid4().hex[:6], vault=vault)
        engine = Engine(runtime, dict.fromkeys(agents, as_agent(agent)), default="agent")
        made = Instance(clock, flaky, runtime, engine, Gateway(runtime, engine, verifier or Developers(clock)))
        self.stack.push_async_callback(made.close)
        return made


async def eventually(condition: Callable[[], bool]) -> None:
    """For what nothing tells of: looks until it is so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


def types(records: list[Record]) -> list[str]:
    return [record.type for record in records]


def ends(records: list[Record]) -> list[Record]:
    return [record for record in records if record.type in TERMINAL]


def unbroken(records: list[Record]) -> bool:
    """Numbered 1, 2, 3 ... and nothing after a turn's end but another turn."""
    return [record.seq for record in records] == list(range(1, len(records) + 1))
