"""The JavaScript client: its own tests, and its bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

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
