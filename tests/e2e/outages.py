"""Journals that can be taken away from the servers that write to them, and given back."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from harness import Port, TcpProxy


class Store(NamedTuple):
    """A journal. `env` sends a server there by the way that `away` closes for as long as its context lasts."""

    url: str
    env: Mapping[str, str]
    away: Callable[[], AbstractAsyncContextManager[None]]


def sqlite_store(directory: Path) -> Store:
    """While it is away another process holds the file for itself, as a copy or a repair does."""
    path = directory / "journal.sqlite"

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        with locked(path):
            yield

    return Store(f"sqlite:///{path}", {}, away)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def swallowed(project: str, proxy: TcpProxy) -> Store:
    """Firestore behind a network that swallows every byte while it is away, and delivers late what it swallowed."""

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        proxy.hold()
        yield
        proxy.release()

    return _firestore(project, proxy, away)


def refused(project: str, proxy: TcpProxy) -> Store:
    """Firestore whose connections break, and cannot be made, while it is away."""

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        reached, nobody = proxy.upstream, Port()
        proxy.upstream = nobody.number
        proxy.cut()
        yield
        proxy.upstream = reached
        nobody.release()

    return _firestore(project, proxy, away)


def _firestore(project: str, proxy: TcpProxy, away: Callable[[], AbstractAsyncContextManager[None]]) -> Store:
    env = {"FIRESTORE_EMULATOR_HOST": f"127.0.0.1:{proxy.port}"}
    return Store(f"firestore://{project}/(default)", env, away)
