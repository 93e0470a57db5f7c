"""The sessions of ADK: what a turn's Runner finds, and what is kept of it for later turns."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai.types import Content, Part
from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic_core import to_json, to_jsonable_python

from legato.agents import Turn
from legato.errors import Refused
from legato.models.gemini_wire import input_of
from legato.models.inputs import part_of

MOST_BYTES: Final = 960 * 1024
"""What is kept of one turn: the largest of its events is left out until they fit beside the state."""


class Kept(BaseModel):
    """A turn's events, and the state after it."""

    events: list[Event] = Field(default_factory=list)
    state: dict[str, Any] = Field(default_factory=dict)


class Sessions(NamedTuple):
    """`known` is how many events of the session are older than its turn."""

    service: InMemorySessionService
    app: str
    known: int


async def opened(turn: Turn, app: str, history: int) -> Sessions:
    """The session as the turns before this one have left it."""
    kept = [Kept.model_validate_json(to_json(each)) for each in await turn.kept(history)]
    service = InMemorySessionService()
    state = kept[-1].state if kept else {}
    session = await service.create_session(app_name=app, user_id=turn.uid, session_id=turn.session, state=state)
    events = [event for each in kept for event in each.events]
    for event in events:
        await service.append_event(session, event)
    return Sessions(service, app, len(events))


async def put_away(turn: Turn, sessions: Sessions) -> None:
    """Keeps what this turn has made of the session."""
    session = await sessions.service.get_session(app_name=sessions.app, user_id=turn.uid, session_id=turn.session)
    assert session
    turn.keep(_kept(session, sessions.known))


def _kept(session: Session, known: int) -> JsonValue:
    dumped = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in session.events[known:]]
    state = {name: value for name, value in session.state.items() if not name.startswith(State.TEMP_PREFIX)}
    told: JsonValue = to_jsonable_python(state, serialize_unknown=True)
    return {"events": [*within(MOST_BYTES - len(to_json(told)), dumped)], "state": told}


def within(most: int, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events; where they do not fit, without what they did to the state, which is kept beside them, and then
    without their largest texts, data and results."""
    if _size(events) > most:
        for event in events:
            event.get("actions", {}).pop("stateDelta", None)
    total = _size(events)
    parts = [part for event in events for part in (event.get("content") or {}).get("parts") or []]
    sizes = [(len(to_json(part)), part) for part in parts]
    for size, part in sorted(sizes, key=lambda sized: -sized[0]):
        if total <= most:
            break
        total -= size - _cut(part, size)
    return events


def _size(events: list[dict[str, Any]]) -> int:
    return sum(len(to_json(event)) for event in events)


def _cut(part: dict[str, Any], size: int) -> int:
    """Leaves its largest content out; gives the size that is left."""
    left_out = {"left_out_bytes": size}
    if answer := part.get("functionResponse"):
        answer["response"] = left_out
        answer.pop("parts", None)
    elif call := part.get("functionCall"):
        call["args"] = left_out
    else:
        signature = part.get("thoughtSignature")
        part.clear()
        part.update({"text": f"[{size} bytes left out]"} | ({"thoughtSignature": signature} if signature else {}))
    return len(to_json(part))


def message_of(given: JsonValue) -> Content:
    """The turn's input: text, text with images and files (`legato.models.inputs`), or a Content of the vendor's, such
    as the answer to a long-running call. Raises Refused (`bad_input`)."""
    if isinstance(given, dict) and "parts" in given:
        return _content(given)
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return Content(role="user", parts=[Part(text=text)])


def _content(given: dict[str, JsonValue]) -> Content:
    parts = given["parts"]
    told = [_vendors(number, part) for number, part in enumerate(parts)] if isinstance(parts, list) else parts
    try:
        content = Content.model_validate_json(to_json({**given, "parts": told}))
    except ValidationError as wrong:
        raise Refused("bad_input", f"the input is no Content: {wrong}") from None
    if not content.parts or content.role not in (None, "user") or any(part.function_call for part in content.parts):
        raise Refused("bad_input", "the input: expected one part or more of a user, none of them a functionCall")
    return content


def _vendors(number: int, part: JsonValue) -> JsonValue:
    ours = isinstance(part, str) or (isinstance(part, dict) and not _OURS.isdisjoint(part))
    return input_of(part_of(number, part)) if ours else part


_OURS: Final = frozenset(["data", "uri"])
"""What tells a part of an input in Legato's words from one in the vendor's."""
