"""`legato journal SESSION`: what a session's journal holds, as a table; segments, epochs and holes are to be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from legato.errors import NotFound
from legato.events import (
    ApprovalRequested,
    ApprovalResolved,
    CredentialRequired,
    Event,
    Payload,
    StepRewound,
    TurnResumed,
    TurnStarted,
    TurnSuspended,
)
from legato.journal import Journal, Segment, SessionKey, Standing
from legato.terminal.view import in_words, printable

MARKS: Final = ("╶", "╭", "│", "╰")
"""An event alone in its segment; the first, a middle and the last one of several."""

_RESUMED: Final = {
    "lease_expired": "its owner is lost; the turn goes on with another",
    "released": "its owner let go of it; the turn goes on with another",
    "decision": "a person has decided; the turn goes on",
    "expiry": "nobody decided in time; the turn goes on",
    "cancel": "the turn is cancelled",
}


class Row(NamedTuple):
    """One line of the table: an event with its place in its segment, or a `seam` that says what lies between two."""

    mark: str
    event: Event | None
    seam: str = ""


async def stored(journal: Journal, key: SessionKey, now: int) -> tuple[Standing, list[Segment]]:
    """Where the session stands and everything its journal still holds. Raises NotFound, JournalUnavailable."""
    standing = await journal.standing(key)
    if standing.head is None:
        raise NotFound(f"the journal knows no session {key.session!r} of {key.uid!r}")
    segments: list[Segment] = []
    while page := await journal.read(key, segments[-1].last + 1 if segments else 1, now):
        segments += page
    return standing, segments


def rows(standing: Standing, segments: Iterable[Segment]) -> Iterator[Row]:
    """The events in order; a seam before each new epoch and wherever some are missing."""
    at, epoch = 0, None
    for segment in segments:
        yield from _hole(at, segment.first)
        records = segment.records()
        if segment.epoch != epoch:
            yield Row("", None, f"epoch {segment.epoch}: {_why(records[0].decode().payload)}")
        for place, record in enumerate(records):
            yield Row(_mark(place, len(records)), record.decode())
        at, epoch = segment.last, segment.epoch
    yield from _hole(at, standing.seq + 1)
    if standing.head and standing.head.deleted:
        yield Row("", None, "the session was deleted")


def _why(first: Payload) -> str:
    """What a new epoch is for, which its first event tells."""
    if isinstance(first, TurnStarted):
        return "a turn begins"
    return _RESUMED.get(first.reason, "the turn goes on") if isinstance(first, TurnResumed) else "the turn is ended"


def _hole(at: int, first: int) -> Iterator[Row]:
    if first == at + 2:
        yield Row("", None, f"event {at + 1} is gone: it has expired")
    elif first > at + 2:
        yield Row("", None, f"events {at + 1} to {first - 1} are gone: they have expired")


def _mark(place: int, size: int) -> str:
    if size == 1:
        return MARKS[0]
    return MARKS[1] if place == 0 else MARKS[3] if place == size - 1 else MARKS[2]


def table(listed: Sequence[Row]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "seq", "epoch", "time", "turn", "type"):
        made.add_column(name, no_wrap=True, justify="right" if name in ("seq", "epoch") else "left")
    made.add_column("what")  # may wrap, or a narrow terminal would take from the other columns too; its cells do not
    for mark, event, seam in listed:
        if event is None:
            made.add_row("", "", "", "", "", Text("──", "yellow"), _one_line(seam, "yellow"))
        else:
            time = datetime.fromtimestamp(event.at / 1000).strftime("%H:%M:%S.%f")[:-3]
            what = _one_line(printable(_what(event)).replace("\n", "⏎"))
            made.add_row(mark, str(event.seq), str(event.epoch), time, _short(event.turn), event.type, what)
    return made


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _short(turn: str) -> str:
    return turn if len(turn) <= 14 else f"{turn[:12]}…"


def _what(event: Event) -> str:
    """The payload without what other columns say: a lone text as it is, else field by field."""
    if words := _in_words(event.payload):
        return words
    fields: dict[str, Any] = event.payload.model_dump(mode="json", exclude_none=True, exclude={"type"})
    if event.type in ("text.delta", "reasoning.delta"):
        return str(fields["text"])
    return "  ".join(f"{name}={in_words(value, 120)}" for name, value in fields.items())


def _in_words(payload: Payload) -> str | None:
    """What happens to a turn as a sentence; None where its fields say it as well."""
    if isinstance(payload, TurnResumed):
        lost = f"; owners lost: {payload.attempt}" if payload.attempt else ""
        return f"{payload.reason}{lost}"
    if isinstance(payload, ApprovalRequested):
        about = f"{payload.kind} of call {payload.call}, until {_until(payload.expires_at)}"
        return f"{payload.request} ({about}): {payload.prompt}"
    if isinstance(payload, CredentialRequired):
        return f"{payload.name} (until {_until(payload.expires_at)}): {payload.reason}"
    if isinstance(payload, ApprovalResolved):
        note = f": {payload.note}" if payload.note else ""
        return f"{payload.request} {'approved' if payload.approved else 'denied'} by {payload.by}{note}"
    if isinstance(payload, TurnSuspended):
        return f"waits for a person ({payload.reason}); its lease is released"
    return f"step {payload.step} starts over; its text is taken back" if isinstance(payload, StepRewound) else None


def _until(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).strftime("%Y-%m-%d %H:%M")
