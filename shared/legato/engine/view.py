"""The snapshot of a session: its ended turns from their records, the active one folded from its events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from legato.engine.records import state_of
from legato.engine.recovery import recover, refold
from legato.engine.runtime import Runtime
from legato.events import Cursor
from legato.journal import Head, SessionKey, Standing, TurnRecord
from legato.turn import ENDED, SessionState, Status

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
    seen: tuple[list[TurnRecord], Head] | None = None
    while True:
        records = await runtime.journal.turns(key, before, PAGE + 1)
        standing = await runtime.journal.standing(key)
        if standing.head is None or standing.head.deleted:
            return None
        last_seen, seen = seen, (records, standing.head)
        settled = before is not None or seen == last_seen
        found = await _assemble(runtime, key, standing, records[-PAGE:], settled)
        if found is not None:
            return View(found, records[1].first if len(records) > PAGE else None)


async def _assemble(
    runtime: Runtime, key: SessionKey, standing: Standing, records: list[TurnRecord], settled: bool
) -> SessionState | None:
    """None when the session moved on between the reads. `settled`: it did not, though a record may have expired."""
    assert standing.head
    ended = tuple(state_of(record) for record in records if record.status in ENDED)
    active = next((record for record in records if record.status not in ENDED), None)
    if active is None:
        if not (settled or _at_rest(standing, standing.head, records)):
            return None
        return SessionState(key.session, Cursor(standing.epoch, standing.seq), ended)
    folded = await refold(runtime, key, SessionState(key.session, Cursor(0, active.first - 1), ended), standing.last)
    if folded is None or folded.find(active.turn) is None:
        found = await recover(runtime, key, active, standing.seq)
        if await runtime.journal.turn(key, active.turn) != active:  # it may have ended at or before that seq
            return None
        state = found.state if found.whole else replace(found.state, status=_status(standing.head, active))
        return SessionState(key.session, Cursor(standing.epoch, standing.seq), ended, state)
    return folded


def _status(head: Head, record: TurnRecord) -> Status:
    """A turn's record is not written when the turn goes on after it waited; the head is."""
    return head.turn.status if head.turn and head.turn.id == record.turn else record.status


def _at_rest(standing: Standing, head: Head, records: list[TurnRecord]) -> bool:
    """No turn runs, and the records go up to the head: a store may have read the head just before a turn began, and the
    newest position just after."""
    return head.turn is None and standing.last <= head.seq and (not records or records[-1].last == head.seq)
