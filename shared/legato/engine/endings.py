"""How a turn comes to rest: the Commit of its last segment, and the last word of one that is not gone on with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from legato.engine.fences import cancel_of
from legato.engine.records import Origin, record_of
from legato.engine.recovery import checkpoint
from legato.engine.runtime import Runtime
from legato.engine.supplies import forgotten
from legato.events import Payload, TurnFailed, TurnInterrupted
from legato.journal import ActiveTurn, Commit, Control, Decision, Private, Segment, Standing
from legato.turn import TurnState

LOST_OWNERS: Final = 3
"""A turn that has cost so many owners their lives is not given to one more."""


def rest(
    runtime: Runtime, origin: Origin, left: tuple[Private, ...], credentials: frozenset[str], segment: Segment,
    state: TurnState, standing: Standing,
) -> tuple[tuple[Private, ...], Commit]:  # fmt: skip
    """The Commit of a turn's last segment: its record, the head at rest and the released lease; where it has completed,
    what it has `left` for later ones; where it has ended, without its `credentials`. Before it, what is stored ahead.

    A turn that waits for a person also leaves its checkpoint, the pieces of that ahead. The Commit knows every answer
    that came before it: were its owner lost right after it, the turn is found by what `sweep_at` says.
    """
    assert standing.head
    assert standing.lease
    now = runtime.clock()
    expires_at = now + runtime.retention_ms
    waiting = state.status == "waiting"
    head = replace(standing.head, seq=segment.last, turn=None, updated_at=now, expires_at=expires_at)
    lease = replace(standing.lease, expires_at=0, commit=segment.commit, sweep_at=None)
    if not waiting:
        record = record_of(state, origin, segment.last, now, expires_at, keep_partial=runtime.keep_partial)
        left = left if state.status == "completed" else ()
        gone = forgotten(state.turn, credentials, standing.control)
        return (), Commit(segment=segment, head=head, lease=lease, turn=record, private=(*left, *gone))
    control = _unanswered(standing.control, state, expires_at)
    asked_for = bool(control.decisions.get(state.turn)) or state.turn in control.cancels
    expiry = min(asked.expires_at for asked in state.waits_for)
    *pieces, kept = checkpoint(segment.last, state, expires_at)
    commit = Commit(
        segment=segment,
        head=replace(head, turn=ActiveTurn(state.turn, "waiting")),
        lease=replace(lease, sweep_at=now if asked_for else expiry),
        control=control,
        turn=record_of(state, origin, None, None, expires_at),
        private=(kept,),
    )
    return tuple(pieces), commit


def last_word(runtime: Runtime, standing: Standing, turn: str, attempts: int, whole: bool) -> Payload | None:
    """How a turn ends that nobody goes on with; None: its next owner enters its agent again.

    `whole`: all that its events told is there. Without that it cannot be known what was done.
    """
    if cancel := cancel_of(standing.control, turn):
        return TurnInterrupted(reason=cancel.reason, by=cancel.by)
    ran_out = standing.lease.expires_at if standing.lease else 0
    if not whole or (ran_out and runtime.forsaken(ran_out)):
        return TurnFailed(code="expired", message="the turn was left for longer than its events are kept")
    if attempts >= LOST_OWNERS:
        return TurnFailed(code="crash_loop", message=f"{attempts} instances were lost while they ran this turn")
    return None


def answered(control: Control | None, turn: str) -> Mapping[str, Decision]:
    """What persons have decided of a turn, by request."""
    return control.decisions.get(turn, {}) if control else {}


def _unanswered(control: Control | None, state: TurnState, expires_at: int) -> Control:
    """The control document with the decisions of this turn that nobody has taken up yet."""
    known = control or Control({}, expires_at)
    asked = {each.request for each in state.waits_for}
    left = {request: made for request, made in answered(control, state.turn).items() if request in asked}
    others = {turn: made for turn, made in known.decisions.items() if turn != state.turn}
    decisions = {**others, state.turn: left} if left else others
    return replace(known, decisions=decisions, expires_at=expires_at)
