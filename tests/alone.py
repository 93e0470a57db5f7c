"""`python -m alone gemini` or `adk`, in an environment that has Legato and that extra: each does what it is there for.

Exits with an error where something is missing, or where an SDK is imported that nobody has asked for.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

from legato import app, cli, demo
from legato.models import Finished, Model, ModelRequest, UserMessage
from local_gemini import LocalGemini

SDKS = ("google.adk", "google.genai")


async def finished(model: Model) -> bool:
    """It gives a whole answer."""
    asked = ModelRequest("", (UserMessage("/say 3"),))
    return [type(event) async for event in model.stream(asked)][-1] is Finished


async def gemini() -> None:
    from legato.models.gemini import Gemini

    async with LocalGemini() as local, Gemini(api_key="k", http_options={"base_url": local.url}) as model:
        assert await finished(model)


async def adk() -> None:
    importlib.import_module("legato.agents.adk")


async def main(extra: str) -> None:
    assert app.DEFAULT_AGENT
    assert cli.main.commands
    assert await finished(demo.agent.model)
    assert not [name for name in SDKS if name in sys.modules]
    await {"gemini": gemini, "adk": adk}[extra]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
