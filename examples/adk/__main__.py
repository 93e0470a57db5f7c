"""Kills the function in mid-answer, before and after: `make example-adk`.

With `GEMINI_API_KEY` or `GOOGLE_API_KEY` in the environment it asks the real service, without one the local one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from gemini.function import Function
from legato.client import LegatoClient, Run, Timing
from legato.events import ApprovalRequested, TextDelta, ToolResult
from local_gemini import without_a_key

HERE = Path(__file__).parent
PIECES = 5
"""After so many pieces of the answer its instance is killed."""


class Prompts(NamedTuple):
    """What the bank is asked: a small transfer, a large one, and one that only the session can answer."""

    small: str = "Transfer 5 to Ann. Then tell me in 100 words what banks did before there were computers."
    large: str = "Transfer 500 to Ann."
    last: str = "Transfer 1 to Bob, and tell me how much I have spent so far."


SCRIPTS = Prompts(
    '/say 2 20\n/tool transfer {"amount": 5, "to": "Ann"}\n/say 30 20',
    '/say 2 20\n/tool transfer {"amount": 500, "to": "Ann"}\n/say 2 20',
    '/tool transfer {"amount": 1, "to": "Bob"}\n/say 2 20',
)


async def main() -> None:
    async with AsyncExitStack() as stack:
        env = await stack.enter_async_context(without_a_key())
        prompts = SCRIPTS if env else Prompts()
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="legato-example-")))
        journal = {"LEGATO_JOURNAL": f"sqlite:///{directory}/journal.sqlite", "LEGATO_LEASE": "2"}
        await before(prompts, {**env, "LEDGER": f"{directory}/before"}, directory)
        await after(prompts, {**env, **journal, "LEDGER": f"{directory}/after"}, directory)


async def before(prompts: Prompts, env: Mapping[str, str], directory: Path) -> None:
    print("\nBefore: ADK's own Runner")
    async with _function("before.py", env, directory) as function:
        try:
            async for number, text in _pieces(function.url, prompts.small):
                _show(text)
                if number == PIECES:
                    function.kill()
        except httpx.TransportError:
            print("\n✗ its instance is killed: answer and session are lost, and all a client can do is ask again")
        await function.start()
        async for _, text in _pieces(function.url, prompts.small):
            _show(text)
    print(f"\n  transferred: {_ledger(env)}")


async def after(prompts: Prompts, env: Mapping[str, str], directory: Path) -> None:
    print("\nAfter: the same agent with Legato")
    async with (
        _function("after.py", {**env, "LEGATO_AGENT": "adk.after:agent"}, directory) as function,
        LegatoClient(function.url, "dev:me", timing=Timing(first=0.2)) as client,
    ):
        async with client.turn("s", prompts.small, turn="t1") as run:
            await _lived(run, function, killed_after=PIECES)
        async with client.turn("s", prompts.large, turn="t2") as run:
            await _lived(run, function, client=client)
        async with client.turn("s", prompts.last, turn="t3") as run:
            await _lived(run, function)
    print(f"  transferred: {_ledger(env)}")


async def _lived(
    run: Run, function: Function, *, killed_after: int | None = None, client: LegatoClient | None = None
) -> None:
    """One turn to its end. Its instance dies after so many pieces of its answer, and while it waits for a person."""
    pieces = 0
    async for update in run:
        match update.event and update.event.payload:
            case TextDelta(text=text):
                _show(text)
                pieces += 1
                if pieces == killed_after:
                    await _replaced(function)
            case ToolResult(content=content) if content:
                print(f"\n✓ {json.dumps(content)}")
            case ApprovalRequested(request=request, prompt=prompt) if client:
                print(f"\n? {prompt}", end="")
                await _replaced(function)
                await client.decide("s", "t2", request, approved=True)
    print(f"\n  {run.status}")


async def _replaced(function: Function) -> None:
    function.kill()
    print("\n✗ its instance is killed; another one goes on, from what is recorded")
    await function.start()


def _function(source: str, env: Mapping[str, str], directory: Path) -> Function:
    return Function(str(HERE / source), {**env, "PYTHONPATH": str(HERE.parent)}, directory / "log")


async def _pieces(url: str, prompt: str) -> AsyncIterator[tuple[int, str]]:
    """The pieces of an answer, numbered from 1."""
    number = 0
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("POST", url, json={"prompt": prompt}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                number += 1
                yield number, json.loads(line.removeprefix("data: "))["text"]


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _ledger(env: Mapping[str, str]) -> str:
    return ", ".join(Path(env["LEDGER"]).read_text().splitlines())


if __name__ == "__main__":
    asyncio.run(main())
