"""The gateway as Cloud Run runs it, pinned to one core, and what it uses meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness import Emulator, Server, find_emulator
from harness.server import Face


@contextmanager
def journal(store: str) -> Iterator[str]:
    """LEGATO_JOURNAL of an empty journal; for `firestore` the emulator runs beside it, on the load generator's core."""
    with TemporaryDirectory() as directory:
        if store == "sqlite":
            yield f"sqlite:///{directory}/journal.sqlite"
            return
        with Emulator(find_emulator(), Path(directory) / "emulator.log") as emulator:
            os.environ["FIRESTORE_EMULATOR_HOST"] = emulator.host
            yield f"firestore://demo-{uuid4().hex[:12]}/(default)"


@asynccontextmanager
async def server(url: str, face: Face = "asgi", core: int = 0, **env: str) -> AsyncIterator[Server]:
    with TemporaryDirectory() as directory:
        serving = Server(url, Path(directory) / "log", face, {"THREADS": "900", **env})
        async with serving:
            for pid in serving.workers():
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), {core})
            yield serving


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def sleep_until_idle(pids: list[int]) -> None:
    """Returns when the server has had a quiet second."""
    before = cpu_seconds(pids)
    for _ in range(20):
        await asyncio.sleep(1)
        now = cpu_seconds(pids)
        if now - before < 0.1:
            return
        before = now
