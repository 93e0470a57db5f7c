"""What a stream costs the journal, and how fast a journal is replayed: `python -m benchmarks.journal [--streams 50]`.

Firestore's documents are counted where the requests leave the process, as they would be billed; the emulator answers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from benchmarks import serving
from legato.app import App, build
from legato.engine.run import StartTurn
from legato.events import Event, TextDelta, TurnStarted
from legato.journal import ActiveTurn, Commit, Head, Lease, Segment, SessionKey, TurnRecord
from legato.journal.firestore import FirestoreJournal
from legato.settings import Settings

PER_SECOND = 20
EVENTS, IN_SEGMENT = 10_000, 10


def counted(journal: FirestoreJournal) -> Counter[str]:
    """Documents written and read by this journal from now on, those that Listen tells of with them."""
    documents: Counter[str] = Counter()
    rpc = journal._rpc
    send, listen = rpc._started, rpc.listen

    async def started(method: str, request: Any) -> Any:
        if method in ("Commit", "BatchWrite"):
            documents["written"] += len(request.writes)
        else:
            documents["read"] += len(request.documents) if method == "BatchGetDocuments" else 1
        return await send(method, request)

    async def told(requests: Any) -> AsyncGenerator[Any, None]:
        async for message in listen(requests):
            documents["read"] += message.WhichOneof("response_type") == "document_change"
            yield message

    rpc._started = started  # type: ignore[method-assign]
    rpc.listen = told  # type: ignore[method-assign]
    return documents


async def costs(url: str, streams: int, seconds: int) -> None:
    app = build(Settings(journal=url))
    assert isinstance(app.journal, FirestoreJournal)
    documents = counted(app.journal)
    running = [asyncio.create_task(_watched(app, index, seconds)) for index in range(streams)]
    await asyncio.sleep(3)
    before, began = Counter(documents), time.monotonic()
    await asyncio.sleep(seconds - 6)
    lasted = time.monotonic() - began
    steady = {name: (documents[name] - before[name]) / lasted / streams for name in ("written", "read")}
    await asyncio.gather(*running)
    whole = {name: documents[name] / seconds / streams for name in ("written", "read")}
    print(f"| documents per second and stream, {streams} streams of {seconds} s | written | read |\n|---|---|---|")
    print(f"| while they run | {steady['written']:.2f} | {steady['read']:.2f} |")
    print(f"| with their start and end | {whole['written']:.2f} | {whole['read']:.2f} |")
    await app.close()


async def _watched(app: App, index: int, seconds: int) -> None:
    key = SessionKey("bench", f"costs-{index}")
    await asyncio.sleep(index * 0.01)
    started = await app.gateway.start(key, StartTurn("t", f"/say {PER_SECOND * seconds} {PER_SECOND}"))
    async for _ in app.gateway.attach(key, started).frames():
        pass


async def replay(url: str) -> None:
    app = build(Settings(journal=url))
    key = SessionKey("bench", "replay")
    await _write(app, key)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        stream = await app.gateway.follow(key, cursor=None, start=True, turn=None)
        assert stream
        size = 0
        async for frames in stream.frames():
            size += frames.count(b"\nid: ") + frames.startswith(b"id: ")
            if size >= EVENTS:
                break
        times.append(time.perf_counter() - began)
    store, segments = url.split(":", maxsplit=1)[0], EVENTS // IN_SEGMENT
    print(f"| replay of {EVENTS} events in {segments} segments, {store} | p50 of 5: {sorted(times)[2] * 1000:.0f} ms |")
    await app.close()


async def _write(app: App, key: SessionKey) -> None:
    """A session with one running turn of EVENTS events, as an owner elsewhere would have written it."""
    now = time.time_ns() // 1_000_000
    later = now + 86_400_000
    began = Event(1, 1, "t", now, TurnStarted(input="x", agent="agent")).encode()
    words = [Event(seq, 1, "t", now, TextDelta(step=1, text=f"w{seq} ")).encode() for seq in range(2, EVENTS + 1)]
    head = Head(1, 0, ActiveTurn("t", "streaming"), now, now, later)
    lease = Lease(1, "elsewhere", "t", 0, later, "n0")
    record = TurnRecord("t", "streaming", "agent", "x", 1, now, later)
    fence = Segment.of([began], "n0", later)
    await app.journal.commit(key, Commit(fence, head, lease, turn=record, new_turn=True))
    parts = [words[at : at + IN_SEGMENT] for at in range(0, len(words), IN_SEGMENT)]
    for group in range(0, len(parts), 50):
        segments = (Segment.of(part, f"n{part[0].seq}", later) for part in parts[group : group + 50])
        await asyncio.gather(*(app.journal.append(key, segment) for segment in segments))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--streams", type=int, default=50)
    options.add_argument("--seconds", type=int, default=60)
    given = options.parse_args()
    with serving.journal("sqlite") as url:
        asyncio.run(replay(url))
    with serving.journal("firestore") as url:
        asyncio.run(replay(url))
        asyncio.run(costs(url, given.streams, given.seconds))


if __name__ == "__main__":
    main()
