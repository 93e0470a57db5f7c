"""Agents that say and return exactly what a test gives them, whatever bytes that is."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import JsonValue

from legato import demo
from legato.agents import Turn
from legato.errors import ToolFailed
from legato.tools import tool


async def pieces(input: list[str]) -> AsyncIterator[str]:  # noqa: A002
    """Says each string of the input as a piece of text of its own."""
    for piece in input:
        yield piece


async def units(input: str) -> AsyncIterator[str]:  # noqa: A002
    """Says the input one UTF-16 unit at a time, as models stream it: a pair is cut into its lone halves."""
    data = input.encode("utf-16-le")
    for at in range(0, len(data), 2):
        yield data[at : at + 2].decode("utf-16-le", "surrogatepass")


@tool(effect="read")
async def echo(value: JsonValue) -> JsonValue:
    return value


@tool(effect="read")
async def lone(value: str) -> str:
    """Half of a surrogate pair between two ordinary words, which is not UTF-8."""
    return f"{value}\ud83d{value}"


@tool(effect="read")
async def refuse(value: str) -> str:
    raise ToolFailed(value, value)


async def results(turn: Turn) -> None:
    """One call that gives the input back, one that cannot, one that fails with it; then a word."""
    await turn.call(echo, value=turn.input)
    for broken in (lone, refuse):
        try:
            await turn.call(broken, value=str(turn.input))
        except ToolFailed:
            await turn.text("failed ")
    await turn.text("done")


agents = {"demo": demo.agent, "pieces": pieces, "units": units, "results": results}
