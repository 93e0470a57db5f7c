"""The places tests run in: journals, faces, and servers over them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from uuid import uuid4

import pytest

from harness import Emulator, Face, Server, find_emulator
from harness.node import why_no_node

LOOPBACK = ("127.", "::1", "localhost")


def _loopback_only(event: str, args: tuple[object, ...]) -> None:
    """No test of this process reaches further than this machine."""
    if event == "socket.connect" and isinstance(args[1], tuple) and not str(args[1][0]).startswith(LOOPBACK):
        raise RuntimeError(f"a test connects to {args[1]}: tests use loopback only")


sys.addaudithook(_loopback_only)

# What a shell starts in the background ignores Ctrl-C and, under nohup, the hang-up too; so would every process that
# the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _why_no_emulator() -> str | None:
    if os.environ.get("FIRESTORE_EMULATOR_HOST"):
        return None
    try:
        find_emulator()
    except FileNotFoundError as missing:
        return f"needs the Firestore emulator: {missing}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Assertions are rewritten without the garbage collector: in CPython 3.11.7 and others, a finalizer that parses
    anything while a syntax tree is built ends it with a SystemError (python/cpython issue 106905)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


NEEDS = {"emulator": _why_no_emulator, "node": why_no_node}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs the emulator or Node is skipped by name where that is missing, and fails where LEGATO_REQUIRE, names
    with commas between them, asks for it."""
    for need, why_not in NEEDS.items():
        if item.get_closest_marker(need) and (reason := why_not()):
            if need in os.environ.get("LEGATO_REQUIRE", "").split(","):
                pytest.fail(f"LEGATO_REQUIRE={need}, but this test {reason}", pytrace=False)
            pytest.skip(reason)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The emulator's host:port, also in FIRESTORE_EMULATOR_HOST: the one that runs already, or one for this run."""
    if host := os.environ.get("FIRESTORE_EMULATOR_HOST"):
        yield host
        return
    with (
        Emulator(find_emulator(), tmp_path_factory.mktemp("emulator") / "log") as started,
        pytest.MonkeyPatch.context() as env,
    ):
        env.setenv("FIRESTORE_EMULATOR_HOST", started.host)
        yield started.host


@pytest.fixture
def firestore_project(emulator: str) -> str:
    """A project of the test's own in the emulator: nothing is shared and nothing is wiped."""
    return f"demo-{uuid4().hex[:20]}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/journal.sqlite"


@pytest.fixture
def firestore_url(firestore_project: str) -> str:
    return f"firestore://{firestore_project}/(default)"


@pytest.fixture(params=["sqlite", pytest.param("firestore", marks=pytest.mark.emulator)])
def journal_url(request: pytest.FixtureRequest) -> str:
    """LEGATO_JOURNAL of an empty journal of the test's own; the test runs once for each store."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["asgi", "flask"])
def face(request: pytest.FixtureRequest) -> Face:
    """The test runs once for each HTTP face."""
    chosen: Face = request.param
    return chosen


class Place(NamedTuple):
    """What a server is started with."""

    journal: str
    face: Face
    directory: Path
    env: Mapping[str, str] = MappingProxyType({})

    def server(self, name: str = "a", **env: str) -> Server:
        """An instance over this journal, not started yet; `env` as in the environment, such as LEGATO_LEASE="2"."""
        ledger = {"LEGATO_DEMO_LEDGER": str(self.ledger)}
        return Server(self.journal, self.directory / f"{name}.log", self.face, {**ledger, **self.env, **env})

    @property
    def ledger(self) -> Path:
        """Where the demo agent's `transfer` and `wire` write, one line for each time that they ran."""
        return self.directory / "ledger"


@pytest.fixture
def place(journal_url: str, face: Face, tmp_path: Path) -> Place:
    return Place(journal_url, face, tmp_path)


@pytest.fixture
async def pair(place: Place) -> AsyncIterator[tuple[Server, Server]]:
    """Two running instances over one journal."""
    async with AsyncExitStack() as stack:
        servers = place.server("a"), place.server("b")
        await asyncio.gather(*(stack.enter_async_context(server) for server in servers))
        yield servers
