"""A load of streams from one process: each starts a turn and takes its events off the socket as they come."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from legato.sse import Decoder


@dataclass(slots=True)
class Measured:
    """One stream. Times are seconds on this process's clock; `late` is each event's, from its `at` to its arrival."""

    sent: float
    first_token: float | None = None
    ended: float | None = None
    words: int = 0
    late: list[float] = field(default_factory=list)
    terminal: str | None = None


async def stream(host: str, port: int, session: str, script: str) -> Measured:
    """Starts one turn over HTTP/1.1 by hand, so that the generator costs as little as it can."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    body = json.dumps({"input": script}).encode()
    head = (
        f"POST /v1/sessions/{session}/turns HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer dev:load\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    seen = Measured(time.time())
    writer.write(head.encode() + body)
    try:
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n")[0]:
            raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
        await _take(reader, seen)
    finally:
        writer.close()
    return seen


async def _take(reader: asyncio.StreamReader, seen: Measured) -> None:
    decoder = Decoder()
    while seen.terminal is None and (size := int(await reader.readline() or b"0", 16)):
        chunk = await reader.readexactly(size + 2)
        now = time.time()
        for message in decoder.feed(chunk[:-2]):
            if message.event == "text.delta":
                seen.words += 1
                seen.first_token = seen.first_token or now
                seen.late.append(now - int(message.data.split('"at":', 1)[1].split(",", 1)[0]) / 1000)
            elif message.event.startswith("turn.") and message.event != "turn.started":
                seen.terminal, seen.ended = message.event, now


async def run(port: int, streams: int, script: str, ramp: float) -> list[Measured]:
    """`streams` turns, begun evenly over `ramp` seconds."""

    async def one(index: int) -> Measured:
        await asyncio.sleep(ramp * index / streams)
        return await stream("127.0.0.1", port, f"load-{time.time_ns()}-{index}", script)

    return list(await asyncio.gather(*(one(index) for index in range(streams))))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
