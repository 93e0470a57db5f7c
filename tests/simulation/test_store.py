"""The simulated store: the contract of every journal."""

from __future__ import annotations

import pytest

from journal.contract import JournalContract, OpenJournal
from legato.journal import SessionKey
from legato.journal.wakeups import Waiters
from simulation.network import Network
from simulation.store import Store


@pytest.fixture
def open_journal() -> OpenJournal:
    waiters: Waiters[SessionKey] = Waiters()
    store = Store(lambda key, segment: None, waiters.wake)
    return lambda: Network(store, waiters)


class TestStore(JournalContract):
    pass
