"""What the journal has of a turn that this instance did not run: its state, and what its owners recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pydantic import JsonValue, TypeAdapter

from legato.engine.past import Recorded, noted, recorded
from legato.engine.records import fold, joined, state_of
from legato.engine.runtime import Runtime
from legato.engine.supplies import Kept, kept
from legato.journal import Private, Segment, SessionKey, TurnRecord
from legato.turn import SessionState, TurnState, advance, merged

CHECKPOINT: Final = "checkpoint"
SLICE_SECONDS: Final = 0.01
"""How long a turn is folded in one go; others' streams go on in between."""
CHECKPOINT_BYTES: Final = 512 * 1024
"""A longer checkpoint is written ahead of the turn's last Commit, in pieces: tools may have given any number of large
results."""
PIECE_CHARS: Final = 512 * 1024
"""Of those pieces; as UTF-8 a Commit has room for one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A turn as it stood after the event `seq`: it outlives the events that tell the same."""

    seq: int
    state: TurnState


_KEPT: Final[TypeAdapter[Checkpoint | list[str]]] = TypeAdapter(Checkpoint | list[str])
"""What the private document of that name says: the checkpoint, or the names of the pieces of its text."""


@dataclass(frozen=True, slots=True)
class Found:
    """A turn up to some seq, the steps and the calls' notes recorded for it, and the credentials kept for it. `whole`:
    nothing that its events told has been lost."""

    state: TurnState
    steps: Mapping[str, Recorded]
    notes: Mapping[str, JsonValue]
    credentials: Mapping[str, Kept]
    whole: bool


def checkpoint(seq: int, state: TurnState, expires_at: int) -> tuple[Private, ...]:
    """The turn after its event `seq`. The last document makes it count; those before it are pieces that have to be
    stored by then. They bear names that no other checkpoint of the turn has."""
    data = _KEPT.dump_json(Checkpoint(seq, state))
    text = data.decode()
    if len(data) <= CHECKPOINT_BYTES:
        return (Private(state.turn, CHECKPOINT, text, expires_at),)
    pieces = [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
    names = [f"{CHECKPOINT}.{seq}.{number}" for number in range(len(pieces))]
    ahead = (Private(state.turn, name, piece, expires_at) for name, piece in zip(names, pieces, strict=True))
    return (*ahead, Private(state.turn, CHECKPOINT, _KEPT.dump_json(names).decode(), expires_at))


def _checkpoint_in(texts: Mapping[str, str]) -> Checkpoint | None:
    """What a turn's private documents have kept; None when nothing, or not all of it."""
    kept = _KEPT.validate_json(texts.get(CHECKPOINT, "[]"))
    if isinstance(kept, list) and kept and texts.keys() >= set(kept):
        kept = _KEPT.validate_json("".join(texts[name] for name in kept))
    return kept if isinstance(kept, Checkpoint) else None


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
        stored = _checkpoint_in(texts) or begun
        state = await _gone_on(runtime, key, stored if stored.seq >= first else begun, first, until)
    credentials = kept(texts, record.first)
    if state is None:
        return Found(state_of(record), {}, {}, credentials, whole=False)
    return Found(state, recorded(texts, record.first), noted(texts, record.first), credentials, whole=True)


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
