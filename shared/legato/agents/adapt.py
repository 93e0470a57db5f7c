"""What teams have today, taken as an agent: an async function of the turn, or a generator of text, sync or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from legato.agents import AgentFunction, Turn
from legato.errors import Refused
from legato.threads import Threads

_END: Final = object()


def as_agent(thing: object) -> AgentFunction:
    """The agent that `thing` is.

    An async function (or an object whose call is one, such as an Agent) is given the turn, and text that it returns is
    said as if by `turn.text`. A generator function yields text; its parameter, if it has one, is the turn where it is
    named `turn` or annotated `Turn`, else the turn's input. Raises TypeError for anything else.
    """
    if not callable(thing) or isinstance(thing, type):
        raise TypeError(f"{thing!r} is no agent: {_EXPECTED}")
    plain = isinstance(thing, FunctionType | MethodType | partial)
    entry = thing if plain else type(thing).__call__
    if inspect.iscoroutinefunction(entry):
        if _parameter(thing) is None:
            raise TypeError(f"{thing!r} is no agent: an async function takes the turn")
        return partial(_run_function, thing)
    if inspect.isasyncgenfunction(entry):
        return partial(_run_async, thing, _wants(thing))
    if inspect.isgeneratorfunction(entry):
        return partial(_run_sync, thing, _wants(thing))
    raise TypeError(f"{thing!r} is no agent: {_EXPECTED}")


_EXPECTED: Final = "expected an Agent, an async function taking the turn, or a generator function of text"

Wants = Callable[[Turn], tuple[Any, ...]]


def _wants(thing: Callable[..., Any]) -> Wants:
    """Reads off the parameters what to call a generator function with."""
    parameter = _parameter(thing)
    if parameter is None:
        return lambda turn: ()
    annotation = parameter.annotation
    said = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if parameter.name == "turn" or said.rpartition(".")[2] == "Turn":
        return lambda turn: (turn,)
    return lambda turn: (turn.input,)


def _parameter(thing: Callable[..., Any]) -> inspect.Parameter | None:
    parameters = list(inspect.signature(thing).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unfilled = [p.name for p in parameters if p.default is p.empty and p not in positional[:1] and not _is_rest(p)]
    if unfilled:
        raise TypeError(f"{thing!r} is no agent: it takes one argument, and nothing would fill {', '.join(unfilled)}")
    return positional[0] if positional else None


def _is_rest(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


async def _say(turn: Turn, piece: object) -> None:
    if not isinstance(piece, str):
        raise Refused("bad_output", f"the agent gave {type(piece).__name__}, expected str")
    await turn.text(piece)


async def _run_function(answer: Callable[[Turn], Awaitable[object]], turn: Turn) -> None:
    if (returned := await answer(turn)) is not None:
        await _say(turn, returned)


async def _run_async(generate: Callable[..., AsyncGenerator[object, None]], wants: Wants, turn: Turn) -> None:
    async with aclosing(generate(*wants(turn))) as pieces:
        async for piece in pieces:
            await _say(turn, piece)


async def _run_sync(generate: Callable[..., Generator[object, None, None]], wants: Wants, turn: Turn) -> None:
    """One thread for the whole generator, as what it holds may belong to its thread; one item at a time."""
    pieces = generate(*wants(turn))
    thread = Threads(1, "legato-agent")
    pull = partial(next, pieces, _END)
    try:
        while (piece := await asyncio.wrap_future(thread.submit(pull))) is not _END:
            await _say(turn, piece)
    finally:
        thread.submit(pieces.close)
        thread.close()
