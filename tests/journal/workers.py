"""Processes of their own that write a journal: `python -m journal.workers race|append|idle PATH NAME`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from journal.builders import clock, segment
from legato.errors import LeaseLost
from legato.journal import SessionKey
from legato.journal.sqlite import SqliteJournal

POSITIONS = 500
SESSIONS = 40


async def race(journal: SqliteJournal, name: str) -> None:
    """Tries every position once, and prints those that it got."""
    for first in range(1, POSITIONS + 1):
        try:
            await journal.append(SessionKey("ann", "race"), segment(first, commit=f"{name}-{first}", text=name))
            print(first)
        except LeaseLost:
            continue


async def append(journal: SqliteJournal, name: str) -> None:
    """Appends to many sessions at once without end; prints each segment after its acknowledgement."""

    async def one(session: str) -> None:
        first = 1
        while True:
            last = first + first % 7
            await journal.append(SessionKey("ann", session), segment(first, last, commit=name, text="x" * 2000))
            print(session, first, last, flush=True)
            first = last + 1

    await asyncio.gather(*(one(f"s{n}") for n in range(SESSIONS)))


async def idle(journal: SqliteJournal, name: str) -> None:
    """Opens the journal and leaves it open."""
    await journal.check()
    await journal.standing(SessionKey("ann", name))


if __name__ == "__main__":
    work, path, name = sys.argv[1:]
    sys.stdin.readline()
    asyncio.run({"race": race, "append": append, "idle": idle}[work](SqliteJournal(Path(path), clock), name))
