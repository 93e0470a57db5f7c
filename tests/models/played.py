"""The written answers of the service, and what a model makes of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from legato.errors import ModelFailed
from legato.models import (
    CallRequested,
    Finished,
    Message,
    Model,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    UserMessage,
)

Case = dict[str, Any]
CASES = Path(__file__).parents[1] / "cases" / "gemini"


def written(name: str) -> list[Case]:
    cases: list[Case] = json.loads((CASES / f"{name}.json").read_text())
    return cases


ANSWERS, FAILURES = written("answers"), written("failures")
LONGEST = max(ANSWERS, key=lambda case: len(case["frames"]))


def named(case: Case) -> str:
    return str(case["name"])


class Played(NamedTuple):
    """What one call said, its end where it had one, and how it failed where it did."""

    said: list[Case]
    finished: Finished | None
    failed: ModelFailed | None


async def played(model: Model, *messages: Message) -> Played:
    events: list[ModelEvent] = []
    failed = None
    try:
        async for event in model.stream(ModelRequest("", messages or (UserMessage("hello"),))):
            events.append(event)  # noqa: PERF401 - what came before the failure counts
    except ModelFailed as error:
        failed = error
    ends = [event for event in events if isinstance(event, Finished)]
    assert ends == [event for event in events[-1:] if isinstance(event, Finished)]
    said = [_case(event) for event in events if not isinstance(event, Finished)]
    return Played(said, ends[0] if ends else None, failed)


def _case(event: ModelEvent) -> Case:
    """The event as a case file has it."""
    match event:
        case TextChunk(text):
            return {"text": text}
        case ReasoningChunk(text):
            return {"reasoning": text}
        case CallRequested(name, arguments, vendor_id):
            return {"call": name, "arguments": arguments, "id": vendor_id}
    raise AssertionError(event)
