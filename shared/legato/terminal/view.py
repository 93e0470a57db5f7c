"""What of a turn is to be shown next: the difference between the turn as shown and the turn as it is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from pydantic import JsonValue

from legato.turn import Approval, Part, ToolState, TurnState

Kind = Literal["text", "reasoning", "call", "progress", "result", "error", "question", "note", "end"]


class Piece(NamedTuple):
    """`text` and `reasoning` go on where the last one ended; every other kind is a line of its own."""

    kind: Kind
    text: str


def difference(shown: TurnState | None, turn: TurnState) -> Iterator[Piece]:
    """The pieces that make `turn` of `shown`. What cannot be taken back from a terminal is shown again as a whole."""
    if shown and not _extends(shown, turn):
        shown = yield from _taken_back(shown, turn)
    known = {tool.call: tool for tool in shown.tools} if shown else {}
    for step in _steps(turn):
        yield from _tail("reasoning", _said(shown, "reasoning", step), _said(turn, "reasoning", step))
        yield from _tail("text", _said(shown, "draft", step), _said(turn, "draft", step))
        for tool in turn.tools:
            if tool.step == step:
                yield from _tool(known.get(tool.call), tool)
                yield from _asked(shown, turn, tool)
                yield from _settled(known.get(tool.call), tool)
    yield from _required(shown, turn)
    if turn.ended and not (shown and shown.ended):
        yield from _tail("text", text_of(shown) if shown else "", text_of(turn))
        yield from _end(turn)


def text_of(turn: TurnState) -> str:
    if not turn.ended:
        return turn.text
    return turn.output if turn.output is not None else turn.partial or ""


def _extends(shown: TurnState, turn: TurnState) -> bool:
    if turn.ended:
        return text_of(turn).startswith(text_of(shown))
    return all(_said(turn, "draft", step).startswith(_said(shown, "draft", step)) for step in _steps(shown))


def _taken_back(shown: TurnState, turn: TurnState) -> Generator[Piece, None, TurnState | None]:
    """Says so, and gives what of the turn still stands: the steps before the first that is not as it was shown."""
    if turn.ended:
        yield Piece("note", "what was shown last is not what the journal holds; the turn from its start:")
        return None
    yield Piece("note", "what was said last is taken back; it is said anew:")
    first = min(
        step for step in _steps(shown) if not _said(turn, "draft", step).startswith(_said(shown, "draft", step))
    )
    return replace(
        shown,
        draft=tuple(part for part in shown.draft if part.step < first),
        reasoning=tuple(part for part in shown.reasoning if part.step < first),
        tools=tuple(tool for tool in shown.tools if tool.step < first),
    )


def _steps(turn: TurnState) -> list[int]:
    return sorted({part.step for part in (*turn.draft, *turn.reasoning)} | {tool.step for tool in turn.tools})


def _said(turn: TurnState | None, what: Literal["draft", "reasoning"], step: int) -> str:
    parts: Sequence[Part] = getattr(turn, what) if turn else ()
    return "".join(part.text for part in parts if part.step == step)


def _tail(kind: Kind, before: str, after: str) -> Iterator[Piece]:
    if len(after) > len(before):
        yield Piece(kind, after[len(before) :])


def _tool(before: ToolState | None, tool: ToolState) -> Iterator[Piece]:
    if before is None:
        yield Piece("call", f"{tool.name} {in_words(tool.arguments)}")
    if tool.message is not None and (before is None or before.message != tool.message):
        part = f" {tool.fraction:.0%}" if tool.fraction is not None else ""
        yield Piece("progress", f"{tool.name}: {tool.message}{part}")


def _asked(shown: TurnState | None, turn: TurnState, tool: ToolState) -> Iterator[Piece]:
    known = {asked.request: asked for asked in shown.approvals} if shown else {}
    for asked in turn.approvals:
        if asked.call == tool.call:
            before = known.get(asked.request)
            if before is None:
                yield Piece("question", question(asked, tool))
            if asked.approved is not None and (before is None or before.approved is None):
                yield Piece("note", decision(asked))


def _required(shown: TurnState | None, turn: TurnState) -> Iterator[Piece]:
    before, now = (set(state.credentials) if state and not state.ended else set() for state in (shown, turn))
    for asked in turn.credentials:
        if asked not in before:
            yield Piece("question", f"{asked.name}? {asked.reason}")
    for asked in shown.credentials if shown and not turn.ended else ():
        if asked not in now:
            yield Piece("note", f"{asked.name} is asked for no more")


def question(asked: Approval, tool: ToolState) -> str:
    """What a person is asked, with the call that it is about."""
    call = f"{tool.name} {in_words(tool.arguments)}"
    if asked.kind == "in_doubt":
        return f"{call} may or may not have been done. Do it again?"
    return f"{asked.prompt} ({call})"


def decision(asked: Approval) -> str:
    """What was decided, and by whom."""
    if asked.by == "expiry":
        return "denied: nobody answered in time"
    verdict = f"{'approved' if asked.approved else 'denied'} by {asked.by}"
    return f"{verdict}: {asked.note}" if asked.note else verdict


def _settled(before: ToolState | None, tool: ToolState) -> Iterator[Piece]:
    if before and before.status == tool.status:
        return
    if tool.status == "ok":
        yield Piece("result", f"{tool.name} {in_words(tool.content)}")
    elif tool.status == "error" and tool.error:
        yield Piece("error", f"{tool.name}: {tool.error.message} ({tool.error.code})")
    elif tool.status == "unsettled":
        yield Piece("error", f"{tool.name}: no result was recorded")


def _end(turn: TurnState) -> Iterator[Piece]:
    if turn.status == "interrupted":
        yield Piece("end", "interrupted")
    elif turn.status == "failed":
        yield Piece("end", f"failed: {turn.error.message} ({turn.error.code})" if turn.error else "failed")


def in_words(value: JsonValue, most: int = 400) -> str:
    """A value on one line: a string as it is, anything else as JSON; cut after `most` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """`text` without what a terminal would obey; tabs and newlines stay."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", "�", text)
