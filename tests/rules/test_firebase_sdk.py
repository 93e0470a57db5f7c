"""A page with the Firebase SDK: what the rules let it do, and that it can follow a turn without a gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import Server
from harness.caller import Caller
from harness.node import installed, node

pytestmark = [pytest.mark.emulator, pytest.mark.node]

RULES = Path(__file__).parents[2] / "firestore.rules"
REPORT = Path(__file__).parents[2] / "build" / "rules-coverage.html"
TURN = (
    '/think 2\n/say 30 60\n/parallel lookup {"key": "a"} transfer {"amount": 3}\n/tool big {"bytes": 1500000}\n/say 5'
)


@pytest.fixture(scope="module")
def package() -> Path:
    return installed(Path(__file__).parent / "node")


@pytest.fixture
def env(emulator: str, firestore_project: str) -> dict[str, str]:
    return {"FIRESTORE_EMULATOR_HOST": emulator, "PROJECT": firestore_project, "RULES": str(RULES)}


def expressions(report: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for found in report:
        yield found
        yield from expressions(found.get("children", []))


def outcomes(expression: dict[str, Any]) -> set[bool]:
    values = (each["value"].get("boolValue") for each in expression["values"] if each.get("count"))
    return {value for value in values if value is not None}


def test_the_rules_hold_for_the_firebase_sdk_and_every_line_of_them_is_exercised(
    package: Path, env: dict[str, str]
) -> None:
    node(package, "--test", "rules.test.js", env=env)
    url = f"http://{env['FIRESTORE_EMULATOR_HOST']}/emulator/v1/projects/{env['PROJECT']}:ruleCoverage"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(httpx.get(f"{url}.html", trust_env=False, timeout=30).text)
    seen: dict[int, set[bool]] = {}
    for each in expressions(httpx.get(url, trust_env=False, timeout=30).json()["report"]):
        seen.setdefault(each["sourcePosition"]["line"], set()).update(outcomes(each))
    lines = enumerate(RULES.read_text().splitlines(), 1)
    conditions = [number for number, line in lines if line.lstrip().startswith(("allow", "return"))]
    assert {line: seen.get(line) for line in conditions} == {line: {True, False} for line in conditions}


async def test_a_page_that_listens_to_the_journal_is_told_every_event_byte_for_byte(
    package: Path, env: dict[str, str], firestore_url: str, tmp_path: Path
) -> None:
    server = Server(firestore_url, tmp_path / "log", "asgi", {"LEGATO_DEMO_LEDGER": str(tmp_path / "ledger")})
    page = await asyncio.create_subprocess_exec(
        "node", "follow.js", cwd=package, env={**os.environ, **env, "UID": "ann", "SESSION": "s1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 23,
    )  # fmt: skip
    async with asyncio.timeout(150), server:  # the emulator may garble a frame, after which the SDK waits for a minute
        ann = Caller(server.url)
        async with ann.start("s1", TURN, "t1") as stream:
            sent = [message.data for message in await stream.rest(60) if message.id]
        told, said = await page.communicate()
    assert page.returncode == 0, said.decode()
    lines = told.decode().splitlines()
    assert lines == sent
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
