"""A turn's record from its state and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue
from pydantic_core import to_json

from legato.events import ErrorInfo
from legato.journal import Segment, TurnRecord
from legato.turn import SessionState, ToolState, TurnState, reduce

RECORD_TOOLS_BYTES = 192 * 1024
"""What a turn's record holds of its tools' arguments and results; with input and text it stays below 1 MiB."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What of a turn's record was fixed when it began; and whether it has `waited` for a person since."""

    first: int
    started_at: int
    retry_of: str | None = None
    waited: bool = False


def record_of(
    state: TurnState,
    origin: Origin,
    last: int | None,
    ended_at: int | None,
    expires_at: int,
    keep_partial: bool = True,
) -> TurnRecord:
    return TurnRecord(
        turn=state.turn,
        status=state.status,
        agent=state.agent,
        input=state.input,
        first=origin.first,
        started_at=origin.started_at,
        retry_of=origin.retry_of,
        last=last,
        ended_at=ended_at,
        expires_at=expires_at,
        output=state.output,
        partial=state.partial if keep_partial else None,
        tools=_within(RECORD_TOOLS_BYTES, state.tools),
        error=state.error.model_dump() if state.error else None,
        usage=state.usage,
        finish_reason=state.finish_reason,
    )


def origin_of(record: TurnRecord) -> Origin:
    return Origin(record.first, record.started_at, record.retry_of, waited=record.status == "waiting")


def state_of(record: TurnRecord) -> TurnState:
    """The turn as its record tells it; of one that runs, all but what its events say."""
    return TurnState(
        turn=record.turn,
        status=record.status,
        input=record.input,
        agent=record.agent,
        tools=record.tools,
        output=record.output,
        partial=record.partial,
        error=ErrorInfo.model_validate(record.error) if record.error else None,
        usage=None if record.usage is None else dict(record.usage),
        finish_reason=record.finish_reason,
    )


def joined(segments: Iterable[Segment], after: int) -> list[Segment]:
    """The segments that follow `after` without a hole, up to the first hole."""
    whole: list[Segment] = []
    head = after
    for segment in segments:
        if segment.first > head + 1:
            break
        whole.append(segment)
        head = segment.last
    return whole


def fold(state: SessionState, segment: Segment) -> SessionState:
    """The session after `segment`."""
    for record in segment.records():
        if record.seq > state.cursor.seq:
            state = reduce(state, record.decode())
    return state


def _within(limit: int, tools: Sequence[ToolState]) -> tuple[ToolState, ...]:
    """The tools, the largest contents and arguments left out until they fit; the journal has them while it lasts."""
    sizes = [len(to_json(tool)) for tool in tools]
    kept = list(tools)
    for index in sorted(range(len(kept)), key=lambda i: -sizes[i]):
        if sum(sizes) <= limit:
            break
        left_out: JsonValue = {"left_out_bytes": sizes[index]}
        kept[index] = replace(kept[index], content=left_out, arguments=left_out)
        sizes[index] = len(to_json(kept[index]))
    return tuple(kept)
