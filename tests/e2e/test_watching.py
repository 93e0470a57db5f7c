"""Two instances over Firestore: followers and owners hear at once, and nobody reads while nothing is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import pytest

from journal.grpc_proxy import GrpcProxy
from legato import sse
from legato.app import load_agents, nonce, now
from legato.auth import Developers
from legato.engine.run import Engine, StartTurn
from legato.engine.runtime import Runtime
from legato.events import Cursor
from legato.gateway import Gateway
from legato.journal import Segment, SessionKey
from legato.journal.firestore import FirestoreJournal
from legato.settings import Settings
from legato.stream import Stream

pytestmark = pytest.mark.emulator

KEYS = [SessionKey("ann", f"s{n}") for n in range(20)]
READS = {"BatchGetDocuments", "RunQuery"}


class Noting(FirestoreJournal):
    """Notes when each segment was acknowledged, by session and last seq."""

    def __init__(self, project: str, host: str) -> None:
        super().__init__(project, "(default)", emulator=host, tick=60)
        self.committed: dict[tuple[SessionKey, int], float] = {}

    async def append(self, key: SessionKey, segment: Segment) -> None:
        await super().append(key, segment)
        self.committed[key, segment.last] = asyncio.get_running_loop().time()


class Instance:
    """One process's worth of Legato, with the demo agent. Its slow poll is too slow to help."""

    def __init__(self, project: str, host: str) -> None:
        self.journal = Noting(project, host)
        runtime = Runtime(self.journal, Settings(ping=0.2, lease=60), now, nonce, nonce())
        self.engine = Engine(runtime, load_agents("legato.demo:agent"), default="agent")
        self.gateway = Gateway(runtime, self.engine, Developers(now))

    async def start(self, key: SessionKey, script: str) -> None:
        await self.gateway.start(key, StartTurn("t", script))

    async def follow(self, key: SessionKey) -> Stream:
        stream = await self.gateway.follow(key, cursor=None, start=True, turn="t")
        assert stream
        return stream

    async def watching(self) -> None:
        """Returns when Listen is in order for everybody who waits."""
        while not all(target.current for target, _ in self.journal._watch._targets.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def openings(self) -> list[object]:
        """Another list when a stream has been opened since."""
        return [stream._outbox for stream in self.journal._watch._streams]

    async def close(self) -> None:
        await self.engine.close()
        await self.journal.close()


class Pair(NamedTuple):
    """An owner of twenty turns, and another instance that follows them."""

    owner: Instance
    other: Instance
    followers: list[Follower]


class Follower:
    """Notes when each event came, by seq."""

    def __init__(self, stream: Stream) -> None:
        self.came: dict[int, float] = {}
        self.first = asyncio.Event()
        self._stream = stream
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        decoder, loop = sse.Decoder(), asyncio.get_running_loop()
        async with aclosing(self._stream.frames()) as frames:
            async for chunk in frames:
                self.came.update({seq(message): loop.time() for message in decoder.feed(chunk) if message.id})
                if self.came:
                    self.first.set()


def seq(message: sse.Message) -> int:
    cursor = Cursor.parse(message.id or "")
    assert cursor
    return cursor.seq


@asynccontextmanager
async def followed(project: str, host: str, script: str) -> AsyncIterator[Pair]:
    """The turns have begun, one after the other, and Listen tells of all of them."""
    owner, other = Instance(project, host), Instance(project, host)
    for key in KEYS:
        await owner.start(key, script)
    followers = [Follower(await other.follow(key)) for key in KEYS]
    try:
        async with asyncio.timeout(20):
            await asyncio.gather(*(follower.first.wait() for follower in followers))
            await asyncio.gather(*(instance.watching() for instance in (owner, other)))
        yield Pair(owner, other, followers)
    finally:
        for follower in followers:
            follower.reading.cancel()
        await owner.close()
        await other.close()


async def test_a_follower_sees_an_event_at_most_100_ms_after_its_commit(emulator: str, firestore_project: str) -> None:
    """In 95 of 100 cases, on another instance, with twenty sessions. The emulator is warm by then.

    In one of four measurements: a machine that is busy with other things spoils one, a wake-up that is late all.
    """
    async with followed(f"{firestore_project}-warm", emulator, "/say 20 10") as pair:
        await asyncio.gather(*(follower.reading for follower in pair.followers))
    figures = []
    for attempt in range(4):
        delays = await measured(f"{firestore_project}-{attempt}", emulator)
        if delays:
            figures.append(delays[int(len(delays) * 0.95)])
            if figures[-1] < 0.1:
                return
    pytest.fail(f"at best {figures} s")


async def measured(project: str, host: str) -> list[float] | None:
    """How long after its commit the last event of each segment came, in order.

    None: the emulator has mixed up the bytes of two answers, as it does now and then where a stream has many targets,
    and the stream had to be opened again.
    """
    async with followed(project, host, "/say 50 10") as pair:
        pair.owner.journal.committed.clear()
        opened = pair.other.openings()
        await asyncio.gather(*(follower.reading for follower in pair.followers))
        if pair.other.openings() != opened:
            return None
    came = dict(zip(KEYS, (follower.came for follower in pair.followers), strict=True))
    delays = [came[key][last] - at for (key, last), at in pair.owner.journal.committed.items()]
    assert len(delays) > 60
    return sorted(delays)


async def test_nobody_reads_while_turns_are_silent(emulator: str, firestore_project: str) -> None:
    """Neither owners nor followers, however often they ping."""
    async with GrpcProxy(emulator) as proxy, followed(firestore_project, proxy.host, "/say 1\n/sleep 60"):
        await asyncio.sleep(1.5)
        before = len(proxy.calls)
        await asyncio.sleep(2)
        assert not READS & set(proxy.calls[before:])


async def test_a_cancel_through_the_other_instance_reaches_the_owner_at_once(
    emulator: str, firestore_project: str
) -> None:
    async with followed(firestore_project, emulator, "/say 1\n/sleep 60") as pair:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await pair.other.gateway.cancel(KEYS[0], "t", "enough", "ann")
        await asyncio.wait_for(pair.followers[0].reading, 10)
        assert max(pair.followers[0].came.values()) - asked < 0.5
