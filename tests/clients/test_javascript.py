"""The JavaScript client: its own tests, its bundle, and the interruption matrix against two instances."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conftest import Place
from harness.node import installed, node

ROOT = Path(__file__).resolve().parents[2]
TSC = "node_modules/typescript/bin/tsc"
SUITE = ("--test", "--enable-source-maps", "--test-reporter=spec")

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def client() -> Path:
    """The client and its tests, compiled."""
    package = installed(ROOT / "clients" / "js")
    node(package, TSC, "--noEmit", "false", "--outDir", "build", env={})
    return package


def test_the_client_holds_what_its_own_tests_say(client: Path) -> None:
    """The case files of the reducer and of the framing, and a scripted server that breaks off anywhere."""
    node(client, *SUITE, "build/test/", env={})


def test_the_bundle_is_what_its_sources_make(client: Path) -> None:
    node(client, "build.js", "--check", env={})


async def test_turns_interrupted_anywhere_are_whole_on_a_client_in_node(
    client: Path, sqlite_url: str, tmp_path: Path
) -> None:
    key = base64.b64encode(bytes(32)).decode()
    place = Place(sqlite_url, "asgi", tmp_path, {"LEGATO_LEASE": "3", "LEGATO_CREDENTIAL_KEYS": key})
    a, b, mortal = servers = [place.server(name) for name in ("a", "b", "mortal")]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(stack.enter_async_context, servers))
        urls = {"LEGATO_A": a.url, "LEGATO_B": b.url, "LEGATO_MORTAL": mortal.url}
        env = {"LEGATO_MORTAL_GROUP": str(mortal.process.pid), "LEGATO_LEDGER": str(place.ledger)}
        await asyncio.to_thread(node, client, *SUITE, "build/e2e/", env={**urls, **env})
