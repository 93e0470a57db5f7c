"""Kills the function in mid-answer, before and after: `make example-gemini`.

With `GEMINI_API_KEY` or `GOOGLE_API_KEY` in the environment it asks the real service, without one the local one.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from gemini.function import Function
from legato.client import LegatoClient, Timing
from legato.events import TextDelta
from local_gemini import without_a_key

PROMPT = "Book table 4. Then say in 150 words what to eat in Lyon."
SCRIPT = '/say 2 20\n/tool book {"table": 4}\n/say 30 20'
PIECES = 5
"""After so many pieces of the answer its function is killed."""


async def main() -> None:
    running = asyncio.current_task()
    assert running
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    async with AsyncExitStack() as stack:
        env = await stack.enter_async_context(without_a_key())
        prompt = SCRIPT if env else PROMPT
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="legato-example-")))
        journal = {"LEGATO_JOURNAL": f"sqlite:///{directory}/journal.sqlite", "LEGATO_LEASE": "2"}
        await before(prompt, {**env, "BOOKINGS": f"{directory}/before"}, directory)
        await after(prompt, {**env, **journal, "BOOKINGS": f"{directory}/after"}, directory)
        await generator(prompt.splitlines()[-1], {**env, **journal, "BOOKINGS": "unused"}, directory)


async def before(prompt: str, env: Mapping[str, str], directory: Path) -> None:
    print("\nBefore: Flask and SSE")
    async with Function("before.py", env, directory / "log") as function:
        pieces = 0
        try:
            async for text in _streamed(function.url, prompt):
                _show(text)
                pieces += 1
                if pieces == PIECES:
                    function.kill()
        except httpx.TransportError:
            print("\n✗ its instance is killed: the rest is lost, and all a client can do is ask again")
        await function.start()
        async for text in _streamed(function.url, prompt):
            _show(text)
    print(f"\n  bookings: {_lines(env['BOOKINGS'])}")


async def after(prompt: str, env: Mapping[str, str], directory: Path) -> None:
    print("\nAfter: the same function with Legato")
    async with Function("after.py", {**env, "LEGATO_AGENT": "after:agent"}, directory / "log") as function:
        await _lived(function, "after", prompt, killed=True)
    print(f"  bookings: {_lines(env['BOOKINGS'])}")


async def generator(prompt: str, env: Mapping[str, str], directory: Path) -> None:
    print("\nA sync generator, as it is")
    async with Function("after.py", {**env, "LEGATO_AGENT": "generator:agent"}, directory / "log") as function:
        await _lived(function, "generator", prompt, killed=False)


async def _lived(function: Function, session: str, prompt: str, *, killed: bool) -> None:
    """One turn from its start to its end; where `killed`, its instance dies in mid-answer and another is started."""
    said, pieces = "", 0
    async with (
        LegatoClient(function.url, "dev:me", timing=Timing(first=0.2)) as client,
        client.turn(session, prompt, turn="t_1") as run,
    ):
        async for update in run:
            match update.event and update.event.payload:
                case TextDelta(text=text):
                    _show(text)
                    said, pieces = said + text, pieces + 1
                    if killed and pieces == PIECES:
                        print("\n✗ its instance is killed; another one goes on with the turn when its lease ends")
                        function.kill()
                        await function.start()
                case None if run.turn and len(run.turn.text) < len(said):
                    said = run.turn.text
                    print(f"↻ of what it had said there is kept: {said}")
    print(f"\n  {run.status}: {len((run.turn.output if run.turn else None) or '')} characters")


async def _streamed(url: str, prompt: str) -> AsyncIterator[str]:
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("POST", url, json={"prompt": prompt}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["text"]


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _lines(bookings: str) -> int:
    return len(Path(bookings).read_text().splitlines())


if __name__ == "__main__":
    asyncio.run(main())
