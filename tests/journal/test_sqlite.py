"""The journal in SQLite: the contract, and what is this store's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from journal.builders import NOW
from journal.contract import JournalContract, OpenJournal
from legato.journal.sqlite import SqliteJournal


@pytest.fixture
async def open_journal(tmp_path: Path) -> AsyncIterator[OpenJournal]:
    opened: list[SqliteJournal] = []

    def open_one() -> SqliteJournal:
        opened.append(SqliteJournal(tmp_path / "new" / "journal.sqlite", clock=lambda: NOW - 1))
        return opened[-1]

    yield open_one
    for journal in opened:
        await journal.close()


class TestSqlite(JournalContract):
    pass
