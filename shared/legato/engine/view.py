"""The snapshot of a session: its ended turns from their records, the active one folded from its events."""

from __future__ import annotations

from dataclasses import dataclass

from legato.engine.records import fold, joined, state_of
from legato.engine.runtime import Runtime
from legato.events import Cursor
from legato.journal import Segment, SessionKey, Standing, TurnRecord
from legato.turn import ENDED, SessionState

PAGE = 20


@dataclass(frozen=True, slots=True)
class View:
    """`before` names the page of older turns, None when there are none."""

    state: SessionState
    before: int | None


async def view(runtime: Runtime, key: SessionKey, before: int | None = None) -> View | None:
    """The session as its committed events tell it, with its newest 20 ended turns (those begun before seq `before`).

    None when there is no such session. Raises JournalUnavailable.
    """
    while True:
        records = await runtime.journal.turns(key, before, PAGE + 1)
        standing = await runtime.journal.standing(key)
        if standing.head is None or standing.head.deleted:
            return None
        found = await _assemble(runtime, key, standing, records[-PAGE:], newest=before is None)
        if found is not None:
            return View(found, records[1].first if len(records) > PAGE else None)


async def _assemble(
    runtime: Runtime, key: SessionKey, standing: Standing, records: list[TurnRecord], newest: bool
) -> SessionState | None:
    """None when the session moved on between the reads."""
    assert standing.head
    ended = tuple(state_of(record) for record in records if record.status in ENDED)
    active = next((record for record in records if record.status not in ENDED), None)
    if active is None:
        at_rest = not newest or (standing.head.turn is None and (not records or records[-1].last == standing.head.seq))
        return SessionState(key.session, Cursor(standing.epoch, standing.seq), ended) if at_rest else None
    segments = await _events(runtime, key, active.first, standing.last)
    if segments is None:
        cursor = Cursor(standing.epoch, standing.seq)
        return SessionState(key.session, cursor, ended, state_of(active))
    return fold(key.session, ended, Cursor(0, active.first - 1), segments)


async def _events(runtime: Runtime, key: SessionKey, first: int, last: int) -> list[Segment] | None:
    """All segments from `first` to at least `last`; None when some are gone."""
    segments: list[Segment] = []
    at = first - 1
    while at < last:
        page = joined(await runtime.journal.read(key, at + 1, runtime.clock()), at)
        if not page:
            return None
        segments += page
        at = page[-1].last
    return segments
