"""What the journal has of a turn that this instance did not run: its state, and what its owners recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pydantic import TypeAdapter

from legato.engine.past import Recorded, recorded
from legato.engine.records import joined, state_of
from legato.engine.runtime import Runtime
from legato.journal import Private, Segment, SessionKey, TurnRecord
from legato.turn import TurnState, advance, merged

CHECKPOINT: Final = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A turn as it stood after the event `seq`: it outlives the events that tell the same."""

    seq: int
    state: TurnState


_CHECKPOINT: Final = TypeAdapter(Checkpoint)


@dataclass(frozen=True, slots=True)
class Found:
    """A turn up to some seq, and the steps recorded for it. `whole`: nothing that its events told has been lost."""

    state: TurnState
    steps: Mapping[str, Recorded]
    whole: bool


def checkpoint(seq: int, state: TurnState, expires_at: int) -> Private:
    return Private(state.turn, CHECKPOINT, _CHECKPOINT.dump_json(Checkpoint(seq, state)).decode(), expires_at)


async def recover(runtime: Runtime, key: SessionKey, record: TurnRecord, last: int) -> Found:
    """The turn as its events tell it up to `last`, from its checkpoint on if it has one; where they are not all there
    any more, what its record says. Raises JournalUnavailable."""
    texts = await runtime.journal.private(key, record.turn, runtime.clock())
    begun = Checkpoint(record.first - 1, TurnState(record.turn, "streaming", record.input, record.agent))
    kept = _CHECKPOINT.validate_json(texts[CHECKPOINT]) if CHECKPOINT in texts else begun
    start = kept if kept.seq >= record.first else begun
    segments = await events_between(runtime, key, start.seq + 1, last)
    if segments is None:
        return Found(state_of(record), {}, whole=False)
    return Found(after(start, segments), recorded(texts, record.first), whole=True)


def after(start: Checkpoint, segments: Iterable[Segment]) -> TurnState:
    """The turn after what follows `start` in `segments`."""
    turn = start.state.turn
    records = (record for segment in segments if segment.turn == turn for record in segment.records())
    payloads = (record.decode().payload for record in records if record.seq > start.seq)
    return reduce(advance, merged(payloads), start.state)


async def events_between(runtime: Runtime, key: SessionKey, first: int, last: int) -> list[Segment] | None:
    """All segments from seq `first` to at least `last`; None when some are gone. Raises JournalUnavailable."""
    segments: list[Segment] = []
    at = first - 1
    while at < last:
        page = joined(await runtime.journal.read(key, at + 1, runtime.clock()), at)
        if not page:
            return None
        segments += page
        at = page[-1].last
    return segments
