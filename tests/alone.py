"""`python -m alone gemini` or `adk`, in an environment that has Legato and that extra: each does what it is there for.

Exits with an error where something is missing, or where an SDK is imported that nobody has asked for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from legato import app, cli, demo
from legato.engine.run import StartTurn
from legato.journal import SessionKey
from legato.models import Finished, Model, ModelRequest, UserMessage
from legato.settings import Settings
from local_gemini import LocalGemini

SDKS = ("google.adk", "google.genai")
TRANSFER = '/tool transfer {"amount": 5, "to": "Ann"}\n/say 2'


async def finished(model: Model) -> bool:
    """It gives a whole answer."""
    asked = ModelRequest("", (UserMessage("/say 3"),))
    return [type(event) async for event in model.stream(asked)][-1] is Finished


async def gemini() -> None:
    from legato.models.gemini import Gemini

    async with LocalGemini() as local, Gemini(api_key="k", http_options={"base_url": local.url}) as model:
        assert await finished(model)


async def adk() -> None:
    with TemporaryDirectory() as directory:
        async with LocalGemini() as local:
            found = {"GOOGLE_API_KEY": "offline", "GOOGLE_GEMINI_BASE_URL": local.url}
            os.environ |= {**found, "LEDGER": f"{directory}/ledger"}
            journal = f"sqlite:///{directory}/journal.sqlite"
            assert await completed(app.build(Settings(journal=journal, agent="adk.after:agent")), TRANSFER)
        assert transferred(directory) == "Ann 5\n"


def transferred(directory: str) -> str:
    return Path(directory, "ledger").read_text()


async def completed(served: app.App, prompt: str) -> bool:
    """A turn with this prompt is played to its end."""
    key = SessionKey("ann", "s1")
    started = await served.gateway.start(key, StartTurn("t1", prompt))
    stream = served.gateway.attach(key, started)
    sent = b"".join([frame async for frame in stream.frames()])
    await served.close()
    return b"event: turn.completed" in sent


async def main(extra: str) -> None:
    assert app.DEFAULT_AGENT
    assert cli.main.commands
    assert await finished(demo.agent.model)
    assert not [name for name in SDKS if name in sys.modules]
    await {"gemini": gemini, "adk": adk}[extra]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
