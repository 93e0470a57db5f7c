"""What an agent of ADK says: as its models stream it, and where that cannot be, once it is an event."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.genai.types import Content

from legato.agents import Turn
from legato.agents.adk.entered import step_name
from legato.errors import ModelFailed
from legato.models.gemini_wire import BAD_CALL, BLOCKED, FINISHED

_SAID: Final = "legato_said"


async def say(turn: Turn, content: Content | None) -> None:
    """Its text is said, its thoughts are shown; awaiting it waits while the journal is behind."""
    for part in (content and content.parts) or []:
        if part.text:
            await (turn.reasoning if part.thought else turn.text)(part.text)


def mark_said(response: LlmResponse) -> None:
    """The event that is made of it says nothing more."""
    response.custom_metadata = {**(response.custom_metadata or {}), _SAID: True}


class Voice:
    """Hears the events of one run, in their order. It is closed when the run is over, however that ends."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._last: Event | None = None
        self._beside: dict[str, asyncio.Task[None]] = {}

    async def hear(self, event: Event) -> None:
        """What was not said in its model's step is said in one of its own: it is recorded that it was."""
        if event.partial:
            return
        if event.finish_reason or event.error_code:
            self._last = event
        if (event.custom_metadata or {}).get(_SAID) or not _speaks(event.content):
            return
        if event.branch is None:
            await self._say(f"said {event.author}", event.content)
            return
        # Of branches that run side by side none waits for what another has to say.
        name, before = f"said {event.author}@{event.branch}", self._beside.get(event.branch)
        self._beside[event.branch] = asyncio.create_task(self._say(name, event.content, before))

    async def _say(self, name: str, content: Content | None, before: asyncio.Task[None] | None = None) -> None:
        if before:
            await before
        await self._turn.step(step_name(name), lambda: say(self._turn, content))

    async def all_said(self) -> None:
        await asyncio.gather(*self._beside.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for saying in self._beside.values():
            saying.cancel()
        await asyncio.gather(*self._beside.values(), return_exceptions=True)

    def finish_reason(self) -> str:
        """That of the last answer. Raises ModelFailed where that is none."""
        if self._last is None:
            return "stop"
        reason = str(getattr(self._last.finish_reason, "value", "") or self._last.error_code or "")
        if reason in FINISHED or not self._last.error_code:
            return FINISHED.get(reason, reason.lower())
        said = f"the model ended its answer with {reason}: {self._last.error_message or ''}".rstrip(": ")
        if BAD_CALL.fullmatch(reason):
            raise ModelFailed("model_bad_call", said)
        raise ModelFailed("model_blocked" if BLOCKED.fullmatch(reason) else "model_stopped", said)


def _speaks(content: Content | None) -> bool:
    return any(part.text for part in (content and content.parts) or [])
