"""What the journal has of a turn that this instance did not run: its state, and what its owners recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
SLICE_SECONDS: Final = 0.01
"""How long a turn is folded in one go; others' streams go on in between."""


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
    begun = Checkpoint(record.first - 1, TurnState(record.turn, "streaming", record.input, record.agent))
    reading, first = runtime.journal.private(key, record.turn, runtime.clock()), record.first
    until = max(last, first)
    if record.status == "streaming":  # it was never suspended and has no checkpoint
        texts, state = await asyncio.gather(reading, _gone_on(runtime, key, begun, first, until))
    else:
        texts = await reading
        kept = _CHECKPOINT.validate_json(texts[CHECKPOINT]) if CHECKPOINT in texts else begun
        state = await _gone_on(runtime, key, kept if kept.seq >= first else begun, first, until)
    if state is None:
        return Found(state_of(record), {}, whole=False)
    return Found(state, recorded(texts, record.first), whole=True)


async def _gone_on(runtime: Runtime, key: SessionKey, start: Checkpoint, first: int, last: int) -> TurnState | None:
    """The turn after all its events from `start` to `last`; None when some are gone. Others get a turn in between.

    Where expiry has emptied the journal, `first` may have been handed out again: the turn's own begins it.
    """
    at, state, time = start.seq, start.state, asyncio.get_running_loop().time
    while at < last:
        page = joined(await runtime.journal.read(key, at + 1, runtime.clock()), at)
        if not page or (at < first and page[0].records()[0].type != "turn.started"):
            return None
        since = time()
        for segment in page:
            state, at = after(state, at, segment), segment.last
            if time() - since > SLICE_SECONDS:
                await asyncio.sleep(0)
                since = time()
    return state


def after(state: TurnState, seq: int, segment: Segment) -> TurnState:
    """The turn, which stands at `seq`, after the rest of `segment`."""
    records = segment.records() if segment.turn == state.turn else []
    return reduce(advance, merged(record.decode().payload for record in records if record.seq > seq), state)


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
