"""Many streams at once: `python -m benchmarks.streams [--store sqlite] [--face asgi] [--streams 1,100,500]`.

The server has core 0; the load generator, and the emulator where there is one, have core 1.
Added time to first token is from sending the request to the first text.delta: the scripted model answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from statistics import mean

from benchmarks import load, serving
from harness import Server
from harness.server import Face

PER_SECOND = 20


async def measure(store: str, face: Face, counts: list[int], seconds: int) -> None:
    delays = ["first token p50 / p95 ms", "event late p50 / p99 ms", "turn late p95 ms"]
    columns = [f"{store}, {face}", *delays, "delivered", "cores", "RSS MB"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    with serving.journal(store) as url:
        async with serving.server(url, face) as server:
            await load.run(server.port, 5, "/say 20 20", 0.1)
            for count in counts:
                await serving.sleep_until_idle(server.workers())
                print(await _row(server, count, seconds), flush=True)


async def _row(server: Server, count: int, seconds: int) -> str:
    words = PER_SECOND * seconds
    used, started = serving.cpu_seconds(server.workers()), asyncio.get_running_loop().time()
    streams = await load.run(server.port, count, f"/say {words} {PER_SECOND}", ramp=count / 100)
    lasted = asyncio.get_running_loop().time() - started
    cores = (serving.cpu_seconds(server.workers()) - used) / lasted
    first = [1000 * (s.first_token - s.sent) for s in streams if s.first_token]
    late = [1000 * each for s in streams for each in s.late]
    turn = [1000 * (s.ended - s.sent - (words - 1) / PER_SECOND) for s in streams if s.ended]
    delivered = mean(s.words / words if s.terminal == "turn.completed" else 0.0 for s in streams)
    at = load.percentile
    cells = [
        f"{at(first, 0.5):.1f} / {at(first, 0.95):.1f}",
        f"{at(late, 0.5):.1f} / {at(late, 0.99):.1f}",
        f"{at(turn, 0.95):.0f}",
        f"{100 * delivered:.1f} %",
        f"{cores:.2f}",
        f"{serving.resident_mb(server.workers()):.0f}",
    ]
    return f"| {count} streams | {' | '.join(cells)} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--store", choices=["sqlite", "firestore"], default="sqlite")
    options.add_argument("--face", choices=["asgi", "flask"], default="asgi")
    options.add_argument("--streams", default="1,100,500")
    options.add_argument("--seconds", type=int, default=15)
    given = options.parse_args()
    os.sched_setaffinity(0, {1})
    asyncio.run(measure(given.store, given.face, [int(n) for n in given.streams.split(",")], given.seconds))


if __name__ == "__main__":
    main()
