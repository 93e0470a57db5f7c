"""What a client makes of the frames it was given, and where the servers' agents are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from legato.events import Record
from legato.sse import Message
from legato.turn import SessionState, reduce, restore

AGENTS = {"PYTHONPATH": str(Path(__file__).parent)}
"""Environment of a server that takes LEGATO_AGENT=agents:... from this folder."""


def journaled(messages: Iterable[Message]) -> list[str]:
    """The events among the frames, as they came."""
    return [message.data for message in messages if message.id is not None and message.event != "snapshot"]


def reduced(session: str, messages: Iterable[Message]) -> SessionState:
    """The client's state after the frames. Raises SequenceGap where one is missing."""
    state = SessionState(session)
    for message in messages:
        if message.event == "snapshot":
            state = restore(json.loads(message.data))
        elif message.id is not None:
            state = reduce(state, Record.of(message.data).decode())
    return state


def seq(data: str) -> int:
    return Record.of(data).seq


def at(data: str) -> int:
    return int(Record.of(data).fields()["at"])


async def eventually(holds: Callable[[], Awaitable[bool]], within: float = 20) -> None:
    async with asyncio.timeout(within):
        while not await holds():  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.05)
