"""The examples run offline by one command, and show what they promise."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"GEMINI_API_KEY", "GOOGLE_API_KEY"}


async def example(name: str, within: float = 120) -> str:
    """What `make example-NAME` prints without a key; it exits 0."""
    env = {key: value for key, value in os.environ.items() if key not in KEYS and not key.startswith("LEGATO_")}
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", name, cwd=ROOT, env={**env, "PYTHONPATH": "examples"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(within):
            output, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.terminate()
            await running.wait()
    assert running.returncode == 0, output.decode()
    return output.decode()


async def test_the_killed_function_books_twice_before_and_once_after() -> None:
    before, after = (await example("gemini")).split("After: ")
    assert "bookings: 2" in before
    assert "completed: 119 characters" in after
    assert "bookings: 1" in after
    assert "completed: 111 characters" in after.split("A sync generator")[1]


async def test_the_killed_agent_of_adk_transfers_twice_before_and_once_after() -> None:
    """Its session and its question outlive its instances."""
    before, after = (await example("adk")).split("After: ")
    assert "transferred: Ann 5, Ann 5\n" in before
    assert "transferred: Ann 5, Ann 500, Bob 1\n" in after
    assert '"spent so far": 506' in after
    assert after.count("completed") == 3
