"""A client of a simulated world: attaches anywhere, is cut off, comes back, and checks all that it is shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from random import Random
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from legato import sse
from legato.errors import LegatoError, NotFound, SequenceGap, TurnGone
from legato.events import SHOWN_EARLY, Cursor, Record
from legato.gateway import Gateway
from legato.journal import SessionKey
from legato.principal import Principal
from legato.stream import Stream
from legato.turn import SessionState, reduce, restore
from simulation.watch import Watch

SILENCE = 25.0


class Pipe:
    """The connection of one stream. A writer waits while `room` chunks are unread, as a socket makes it."""

    def __init__(self, room: int = 4) -> None:
        self.closed = False
        self._chunks: deque[bytes] = deque()
        self._room = room
        self._moved = asyncio.Event()

    async def write(self, chunk: bytes) -> None:
        while len(self._chunks) >= self._room and not self.closed:
            await self._wait()
        self._chunks.append(chunk)
        self._moved.set()

    async def read(self) -> bytes | None:
        """None at the end, after what was written before it. Raises TimeoutError after a long silence."""
        async with asyncio.timeout(SILENCE):
            while not self._chunks and not self.closed:
                await self._wait()
        chunk = self._chunks.popleft() if self._chunks else None
        self._moved.set()
        return chunk

    def close(self) -> None:
        self.closed = True
        self._moved.set()

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


async def serve(stream: Stream, pipe: Pipe) -> None:
    """The server's side: writes a stream until either end goes away."""
    try:
        async with aclosing(stream.frames()) as frames:
            async for chunk in frames:
                await pipe.write(chunk)
                if pipe.closed:
                    return
    finally:
        pipe.close()


class Server(Protocol):
    """An instance as a client reaches it: `ask` runs a request there, `serve` starts one that may take long."""

    name: str
    gateway: Gateway

    def clock(self) -> int: ...

    async def ask(self, work: Any) -> Any: ...

    def open(self, stream: Stream) -> Pipe: ...


class Client:
    """One reader. `choose` gives the instance it is led to next, `topic` the turn it asks for, None for the session."""

    def __init__(
        self,
        name: str,
        key: SessionKey,
        watch: Watch,
        gentle: bool,
        day: asyncio.Event,
        random: Random,
        choose: Callable[[], Server],
        topic: Callable[[], str | None],
    ) -> None:
        self.name = name
        self.state = SessionState(key.session)
        self.pipe: Pipe | None = None
        self.hurried = False
        self._key = key
        self._watch = watch
        self._gentle = gentle
        self._day = day
        self._random = random
        self._choose = choose
        self._topic = topic
        self._offered: tuple[Pipe, int] | None = None
        self._pace = random.choice((0.0, 0.0, 0.3))

    @property
    def cursor(self) -> Cursor | None:
        return self.state.cursor if self.state.cursor.seq else None

    async def live(self) -> None:
        """Reads for ever, from whichever instance, with pauses between connections."""
        while True:
            await self._day.wait()
            server = self._choose()
            try:
                await (self._attach(*self._offered) if self._offered else self._connect(server))
            except NotFound:
                pass
            except (LegatoError, TimeoutError, ConnectionError) as failed:
                self._watch.note(self.name, "fails at", server.name, repr(failed))
            await asyncio.sleep(self._random.uniform(0.02, self._patience()))

    def _patience(self) -> float:
        """How long it stays away at most, in seconds: for longer than a lease, now and then."""
        return 0.2 if self.hurried else self._random.choice((0.1, 0.1, 1.5, 1.5, 30))

    async def _connect(self, server: Server) -> None:
        turn = self._topic() if self._random.random() < 0.7 else None
        start = turn is None and not self._watch.expired and self._random.random() < 0.1
        asked: dict[str, Any] = {"cursor": self.cursor, "start": start, "turn": turn}
        self._watch.note(self.name, "asks", server.name, str(self.cursor), turn or "", "from start" if start else "")
        try:
            if self._random.random() < 0.15:
                await self._poll(server, asked)
            else:
                await self._follow(server, asked)
        except TurnGone:
            self._watch.gone(self.name, turn)

    async def _follow(self, server: Server, asked: dict[str, Any]) -> None:
        stream = await server.ask(server.gateway.follow(self._key, **asked, caller=self._token(server)))
        if stream is None:
            self._ended(asked["turn"])
        else:
            self._forget(asked["start"])
            await self.read(server.open(stream), stream.id)

    def _token(self, server: Server) -> Principal:
        """One that ends soon, or never."""
        life = self._random.choice((None, 2_000, 15_000))
        return Principal(self._key.uid, life and server.clock() + life)

    async def _renew(self, stream: str) -> None:
        """Brings a fresh token to whichever instance, or to none."""
        server = self._choose()
        if self._random.random() < 0.7:
            with suppress(LegatoError, TimeoutError, ConnectionError):
                await server.ask(server.gateway.prolong(self._key, stream, self._token(server)))

    async def _poll(self, server: Server, asked: dict[str, Any]) -> None:
        answer = await server.ask(server.gateway.poll(self._key, **asked, wait=self._random.choice((0.0, 3.0))))
        if answer is None:
            self._ended(asked["turn"])
            return
        self._forget(asked["start"])
        if "snapshot" in answer:
            self._restored(answer["snapshot"])
        for event in answer["events"]:
            self._take(Record.of(to_json(event).decode()))

    async def read(self, pipe: Pipe, stream: str = "") -> None:
        """Reads one stream to its end, or as far as it goes; `stream` is what it is called where its token ends."""
        decoder = sse.Decoder()
        self.pipe = pipe
        try:
            while self._day.is_set() and (chunk := await pipe.read()) is not None:
                for message in decoder.feed(chunk):
                    self._see(message)
                    if message.event == "auth.expiring":
                        await self._renew(stream)
                if self._pace and not self.hurried:
                    await asyncio.sleep(self._random.uniform(0, self._pace))
        finally:
            pipe.close()
            self.pipe = None

    def offer(self, pipe: Pipe, first: int) -> None:
        """The stream that a start opened, which begins at `first`: taken up when this client connects next."""
        self._offered = pipe, first

    async def _attach(self, pipe: Pipe, first: int) -> None:
        """Where the stream would leave a hole the client comes back with its cursor instead."""
        self._offered = None
        if self.state.cursor.seq == first - 1 and self.state.active is None and not pipe.closed:
            await self.read(pipe)
        else:
            pipe.close()

    def _see(self, message: sse.Message) -> None:
        if message.event == "snapshot":
            self._restored(from_json(message.data))
        elif message.id is not None:
            record = Record.of(message.data)
            self._watch.holds(message.id == str(record.cursor), "a frame's id is its cursor", message.id)
            self._take(record)
        else:
            self._watch.note(self.name, "is told", message.event, message.data)

    def _take(self, record: Record) -> None:
        watch, seen = self._watch, self.state.cursor
        follows = record.seq == seen.seq + 1
        watch.holds(follows, "a reader is given what follows its cursor", self.name, seen, record)
        try:
            self.state = reduce(self.state, record.decode())
        except SequenceGap as gap:
            watch.holds(False, "no hole", str(gap))
        if record.type in SHOWN_EARLY:
            watch.shown_early(self.name, record)
        else:
            watch.shown(self.name, record, self.state)

    def _restored(self, fields: dict[str, Any]) -> None:
        behind, self.state = self.state.cursor.seq, restore(fields)
        exact = not self._gentle or self.state.cursor.seq >= behind
        self._watch.holds(exact, "a resume is exact where nothing is disturbed", self.name, behind, self.state.cursor)
        self._watch.snapshot(self.name, self.state)

    def _forget(self, start: bool) -> None:
        """Who asks for everything from the start has nothing yet."""
        if start:
            self.state = SessionState(self._key.session)

    def _ended(self, turn: str | None) -> None:
        """204: there is no more of that turn."""
        known = self.state.find(turn) if turn else None
        self._watch.holds(known is not None and known.ended, "204 only where the reader has the end", self.name, turn)
