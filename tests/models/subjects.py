"""What the contract of turns sees from behind an adapter: the service that is asked, and the world its tools act on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from engine.rig import PATIENCE
from legato.models import Finished, ModelEvent, ModelRequest, TextChunk
from legato.models.scripted import ScriptedModel
from local_gemini import Answer, LocalGemini


class World:
    """What is outside of all instances. `paid` are amounts by the keys of their calls; `hold` keeps a call at work,
    `held` being set meanwhile, until `opened`."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}
        self.looked: list[str] = []
        self.held, self.opened = asyncio.Event(), asyncio.Event()

    def lookup(self, key: str) -> dict[str, str]:
        self.looked.append(key)
        return {"value": f"the value of {key}"}

    def pay(self, key: str, amount: int) -> int:
        assert key not in self.paid
        self.paid[key] = amount
        return amount

    async def hold(self) -> str:
        self.held.set()
        await self.opened.wait()
        return "let go"

    async def endless(self) -> None:
        await asyncio.Event().wait()


class Heard(Protocol):
    """The service behind a model, by the numbers of its calls, from 0."""

    def asked(self) -> list[str]:
        """What each call has told it, in words of its own."""

    def taken(self, number: int) -> int:
        """How many pieces of the answer were taken so far."""

    async def left(self, number: int) -> bool:
        """Whether the call was ended by its caller and not by its answer, once it has ended."""

    def break_off(self, after: int) -> None:
        """The next answer ends after so many pieces, as if that were all."""

    def flood(self, pieces: int) -> None:
        """The next answer is that many pieces, each `w `; buffers on the way hold few of them."""


@dataclass
class OverWire:
    """The local Gemini, whoever talks to it."""

    service: LocalGemini

    def asked(self) -> list[str]:
        return [json.dumps(seen.body) for seen in self.service.seen]

    def taken(self, number: int) -> int:
        return self.service.seen[number].frames if number < len(self.service.seen) else 0

    async def left(self, number: int) -> bool:
        async with asyncio.timeout(PATIENCE):
            seen = await self.service.request(number)
            await seen.ended.wait()
        return seen.left

    def break_off(self, after: int) -> None:
        self.service.befall(Answer(after=after, cut=True, clean=True))

    def flood(self, pieces: int) -> None:
        content = {"content": {"role": "model", "parts": [{"text": "w "}]}}
        last = {"candidates": [{"finishReason": "STOP"}]}
        self.service.befall(Answer(frames=[{"candidates": [content], "responseId": "x" * 16_000}] * pieces + [last]))


@dataclass
class Overheard:
    """One call of the scripted model."""

    told: str
    taken: int = 0
    left: bool = True
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedService:
    """The scripted model with somebody listening; it is a Model, and Heard."""

    def __init__(self) -> None:
        self._calls: list[Overheard] = []
        self._next: tuple[int | None, int | None] = (None, None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        call = Overheard(repr(request.messages))
        self._calls.append(call)
        (breaks, floods), self._next = self._next, (None, None)
        answer = ScriptedModel().stream(request) if floods is None else _flood(floods)
        try:
            async with aclosing(answer) as events:  # type: ignore[type-var]
                async for event in events:
                    if call.taken == breaks:
                        break
                    yield event
                    call.taken += 1
            call.left = False
        finally:
            call.ended.set()

    def asked(self) -> list[str]:
        return [call.told for call in self._calls]

    def taken(self, number: int) -> int:
        return self._calls[number].taken if number < len(self._calls) else 0

    async def left(self, number: int) -> bool:
        async with asyncio.timeout(PATIENCE):
            await self._calls[number].ended.wait()
        return self._calls[number].left

    def break_off(self, after: int) -> None:
        self._next = after, None

    def flood(self, pieces: int) -> None:
        self._next = None, pieces


async def _flood(pieces: int) -> AsyncIterator[ModelEvent]:
    for _ in range(pieces):
        yield TextChunk("w ")
    yield Finished("stop", {})
