"""What the journal has of a turn that this instance did not run: its state, and what its owners recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pydantic import TypeAdapter

from legato.engine.past import Recorded, recorded
from legato.engine.records import fold, joined, state_of
from legato.engine.runtime import Runtime
from legato.journal import Private, Segment, SessionKey, TurnRecord
from legato.turn import SessionState, TurnState, advance, merged

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
    at, state = start.seq, start.state
    async with aclosing(_segments(runtime, key, at, last)) as segments:
        async for segment in segments:
            if at < first and segment.records()[0].type != "turn.started":
                return None
            state, at = after(state, at, segment), segment.last
    return state if at >= last else None


async def refold(runtime: Runtime, key: SessionKey, start: SessionState, last: int) -> SessionState | None:
    """The session after all its events from `start` to at least `last`; None when some are gone. No more than a page of
    them is held at a time, and others get a turn in between."""
    state = start
    async with aclosing(_segments(runtime, key, start.cursor.seq, last)) as segments:
        async for segment in segments:
            state = fold(state, segment)
    return state if state.cursor.seq >= last else None


async def _segments(runtime: Runtime, key: SessionKey, at: int, last: int) -> AsyncGenerator[Segment, None]:
    """Those behind seq `at` up to the page that reaches `last`, or up to the first hole."""
    time = asyncio.get_running_loop().time
    while at < last:
        page = joined(await runtime.journal.read(key, at + 1, runtime.clock()), at)
        if not page:
            return
        since, at = time(), page[-1].last
        for segment in page:
            yield segment
            if time() - since > SLICE_SECONDS:
                await asyncio.sleep(0)
                since = time()


def after(state: TurnState, seq: int, segment: Segment) -> TurnState:
    """The turn, which stands at `seq`, after the rest of `segment`."""
    records = segment.records() if segment.turn == state.turn else []
    return reduce(advance, merged(record.decode().payload for record in records if record.seq > seq), state)
