"""Agents that servers under test are given by LEGATO_AGENT, to stop, block and break where a test wants it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from legato import demo
from legato.agents import Turn
from legato.agents.loop import Agent
from legato.models.scripted import ScriptedModel
from legato.tools import tool

PACE = 0.02


@tool(effect="read")
async def glance(*, key: str) -> str:
    """Leaves a mark, at once."""
    leave_mark(f"glance {key}")
    return "seen"


@tool(effect="read")
async def watch(seconds: float, *, key: str) -> str:
    """Leaves a mark, then takes its time."""
    leave_mark(f"watch {key}")
    await asyncio.sleep(seconds)
    return "seen"


def paid(key: str) -> str | None:
    return "paid" if f"pay {key}" in marks() else None


@tool(effect="once", timeout=2, reconcile=paid)
async def pay(seconds: float, *, key: str) -> str:
    """Pays at once, and takes its time to say so."""
    leave_mark(f"pay {key}")
    await asyncio.sleep(seconds)
    return "paid"


scripted = Agent(model=ScriptedModel(), tools=[demo.slow, demo.transfer, glance, watch, pay])


async def stopping(turn: Turn) -> None:
    """Freezes its own process, where FREEZES is set, between its text and the commit of its tool's call."""
    await turn.text("before ")
    if "FREEZES" in os.environ:
        await asyncio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
    await turn.call(demo.transfer, amount=1)
    await turn.text("after")


def marked(key: str) -> str | None:
    """What became of a `rude` call: its mark tells."""
    return "done" if key in marks() else None


@tool(effect="once", timeout=8, reconcile=marked)
async def rude(seconds: float, *, key: str) -> str:
    """Blocks the event loop, then leaves a mark in the ledger."""
    time.sleep(seconds)  # noqa: ASYNC251 - this is the fault
    leave_mark(key)
    return "done"


def marks() -> list[str]:
    ledger = Path(os.environ["LEGATO_DEMO_LEDGER"])
    return ledger.read_text().splitlines() if ledger.exists() else []


def leave_mark(key: str) -> None:
    with Path(os.environ["LEGATO_DEMO_LEDGER"]).open("a") as ledger:
        ledger.write(f"{key}\n")


async def blocking(turn: Turn) -> None:
    await turn.text("before ")
    await asyncio.sleep(0.3)
    await turn.call(rude, seconds=float(str(turn.input)))
    await turn.text("after")


async def hand_written(turn: Turn) -> None:
    """Says the first half of its input, transfers, and says the rest in a step of its own."""
    said = str(turn.input).split()
    half = len(said) // 2

    async def rest() -> None:
        await say(turn, said[half:])

    await say(turn, said[:half])
    await turn.call(demo.transfer, amount=1)
    await turn.step("rest", rest)


async def say(turn: Turn, said: list[str]) -> None:
    for word in said:
        await asyncio.sleep(PACE)
        await turn.text(f"{word} ")


async def generator(input: str) -> AsyncIterator[str]:  # noqa: A002
    """What teams have today: the answer as it comes."""
    try:
        for word in input.split():
            await asyncio.sleep(PACE)
            yield f"{word} "
    finally:
        leave_mark("closed")


def sync_generator(input: str) -> Iterator[str]:  # noqa: A002
    try:
        for word in input.split():
            time.sleep(PACE)
            yield f"{word} "
    finally:
        leave_mark("closed")


kinds = {"hand-written": hand_written, "generator": generator, "sync-generator": sync_generator}
