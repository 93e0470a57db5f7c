"""A `once` tool that a test keeps at work for as long as it likes."""

from __future__ import annotations

import asyncio

from engine.rig import PATIENCE
from legato import Turn, tool


class Payment:
    """`tool` pays when it is told to: `going` lets it. `agent` does nothing else."""

    def __init__(self) -> None:
        self.going = asyncio.Event()
        self.tool = tool(effect="once", name="pay")(self._pay)
        self._entered = asyncio.Event()

    async def _pay(self) -> str:
        self._entered.set()
        await self.going.wait()
        return "paid"

    async def agent(self, turn: Turn) -> None:
        await turn.call(self.tool)

    async def entered(self) -> None:
        """Returns when the tool is at work."""
        await asyncio.wait_for(self._entered.wait(), PATIENCE)
