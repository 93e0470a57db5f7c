"""Two instances for each place. The tests of faults share them, with sessions of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from conftest import Place
from e2e.duo import ENV, HERE, Duo, Where


@pytest.fixture(scope="session", params=HERE)
def duo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    where: Where = request.param
    directory = tmp_path_factory.mktemp("-".join(where))
    with two(Place(journal_at(where, directory, request), where.face, directory), ENV) as servers:
        yield servers


@contextmanager
def two(place: Place, env: Mapping[str, str]) -> Iterator[Duo]:
    """Two running instances with that environment."""
    servers = place.server("a", **env), place.server("b", **env)
    try:
        asyncio.run(_all(*(server.start() for server in servers)))
        yield Duo(*servers, place)
    finally:
        asyncio.run(_all(*(server.__aexit__() for server in servers)))


@pytest.fixture
def session() -> str:
    """A session that nobody has used."""
    return f"s-{uuid4().hex[:12]}"


def journal_at(where: Where, directory: Path, request: pytest.FixtureRequest) -> str:
    """LEGATO_JOURNAL of an empty journal."""
    if where.store == "sqlite":
        return f"sqlite:///{directory}/journal.sqlite"
    request.getfixturevalue("emulator")
    return f"firestore://demo-{uuid4().hex[:20]}/(default)"


async def _all(*work: Awaitable[None]) -> None:
    await asyncio.gather(*work)
