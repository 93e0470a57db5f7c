"""What begins an epoch: its first event at head + 1, with the head and the lease that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from legato.engine.runtime import Runtime
from legato.events import Event, Payload, TurnFailed, TurnInterrupted
from legato.journal import ActiveTurn, Cancel, Commit, Control, Head, Lease, Segment, Standing

EXPIRY_MARGIN_MS = 3_600_000
"""A turn left for the TTL less this is not gone on with: its events might expire meanwhile."""


CANCELS = 64
"""How many turns' cancels a session holds at once; most are of turns that never begin."""


def fence(runtime: Runtime, standing: Standing, payload: Payload, turn: str, attempts: int = 0) -> Commit:
    """Makes this instance the owner of `turn`. Fails as a whole when anything of `standing` is not so any more."""
    now, nonce = runtime.clock(), runtime.nonce()
    epoch, seq, old = standing.epoch + 1, standing.seq + 1, standing.head
    record = Event(seq, epoch, turn, now, payload).encode()
    head = Head(
        epoch=epoch,
        seq=old.seq if old else 0,
        turn=ActiveTurn(turn, "streaming"),
        created_at=old.created_at if old and not old.deleted else now,
        updated_at=now,
        expires_at=now + runtime.retention_ms,
        version=old.version if old else None,
    )
    version = standing.lease.version if standing.lease else None
    lease = Lease(epoch, runtime.instance, turn, attempts, now + runtime.lease_ms, nonce, version)
    return Commit(segment=Segment.of([record], nonce, now + runtime.ttl_ms), head=head, lease=lease)


def tombstone(runtime: Runtime, standing: Standing, head: Head) -> Commit:
    """Deletes a session: its head says so under a new epoch, an active turn is fenced by its end, and whatever was
    asked of its turns is withdrawn, so that what is asked from now on can be told from it."""
    asked = standing.control
    control = replace(asked, cancels={}, decisions={}) if asked and (asked.cancels or asked.decisions) else None
    if head.turn is None:
        now = runtime.clock()
        expires_at = now + runtime.retention_ms
        moved = replace(head, epoch=standing.epoch + 1, seq=standing.seq, updated_at=now, expires_at=expires_at)
        return Commit(head=replace(moved, deleted=True), control=control)
    ended = fence(runtime, standing, TurnInterrupted(reason="the session was deleted", by="owner"), head.turn.id)
    assert ended.segment
    assert ended.head
    assert ended.lease
    buried = replace(ended.head, seq=ended.segment.last, turn=None, deleted=True)
    return replace(ended, head=buried, lease=replace(ended.lease, expires_at=0), control=control)


def last_word(runtime: Runtime, standing: Standing, turn: str) -> Payload:
    """How a turn ends whose owner is gone: as its cancel asked, or as lost."""
    cancel = cancel_of(standing.control, turn)
    if cancel:
        return TurnInterrupted(reason=cancel.reason, by=cancel.by)
    ran_out = standing.lease.expires_at if standing.lease else 0
    if ran_out and runtime.clock() > ran_out + runtime.ttl_ms - EXPIRY_MARGIN_MS:
        return TurnFailed(code="expired", message="the turn was left for longer than its events are kept")
    return TurnFailed(code="owner_lost", message="the instance that ran this turn is gone", retryable=True)


def cancel_of(control: Control | None, turn: str) -> Cancel | None:
    return control.cancels.get(turn) if control else None


def newest(cancels: Mapping[str, Cancel], count: int) -> dict[str, Cancel]:
    return dict(sorted(cancels.items(), key=lambda entry: entry[1].at)[-count:])


def open_cancels(runtime: Runtime, standing: Standing, control: Control) -> dict[str, Cancel]:
    """Without that of the turn before, which has ended, and those whose turn did not begin within the TTL."""
    ended = standing.lease.turn if standing.lease else None
    oldest = runtime.clock() - runtime.ttl_ms
    return {turn: cancel for turn, cancel in control.cancels.items() if turn != ended and cancel.at > oldest}
