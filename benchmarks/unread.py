"""Readers that never read: `python -m benchmarks.unread [--store sqlite] [--face asgi] [--readers 100] [--mb 100]`.

They follow one session, whose turns give a megabyte each. What the server has in memory must come from the number of
readers, not from what was said.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack, closing

from benchmarks import serving
from harness import Server, Stuck
from harness.server import Face

SESSION = "unread"


async def measure(store: str, face: Face, readers: int, megabytes: int) -> None:
    with serving.journal(store) as url:
        async with serving.server(url, face) as server:
            await _say(server, "/say 1")
            await serving.sleep_until_idle(server.workers())
            before, began = serving.resident_mb(server.workers()), asyncio.get_running_loop().time()
            with ExitStack() as stack:
                for _ in range(readers):
                    stack.enter_context(closing(Stuck(server.url, "GET", f"/v1/sessions/{SESSION}/events?from=start")))
                most = 0.0
                for _ in range(megabytes):
                    await _say(server, '/tool big {"bytes": 1000000}')
                    most = max(most, serving.resident_mb(server.workers()))
            lasted = asyncio.get_running_loop().time() - began
    print(f"| {store}, {face}, {readers} readers, {megabytes} MB | {before:.0f} | {most:.0f} | {lasted:.0f} |")


async def _say(server: Server, script: str) -> None:
    async with server.caller().start(SESSION, script) as answer:
        assert (await answer.rest(60))[-1].event == "turn.completed"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--store", choices=["sqlite", "firestore"], default="sqlite")
    options.add_argument("--face", choices=["asgi", "flask"], default="asgi")
    options.add_argument("--readers", type=int, default=100)
    options.add_argument("--mb", type=int, default=100)
    given = options.parse_args()
    asyncio.run(measure(given.store, given.face, given.readers, given.mb))


if __name__ == "__main__":
    main()
