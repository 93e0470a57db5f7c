"""What begins an epoch: `turn.started` or `turn.resumed` at head + 1, with the head and the lease that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from legato.engine.past import Doubt
from legato.engine.runtime import Runtime
from legato.events import Event, Payload, TurnInterrupted, TurnResumed
from legato.journal import ActiveTurn, Cancel, Commit, Control, Head, Lease, Segment, Standing

CANCELS = 64
"""How many turns' cancels a session holds at once; most are of turns that never begin."""


def fence(runtime: Runtime, standing: Standing, turn: str, *payloads: Payload, attempts: int = 0) -> Commit:
    """Makes this instance the owner of `turn`. Fails as a whole when anything of `standing` is not so any more."""
    now, nonce = runtime.clock(), runtime.nonce()
    epoch, seq, old = standing.epoch + 1, standing.seq + 1, standing.head
    records = [Event(seq + at, epoch, turn, now, payload).encode() for at, payload in enumerate(payloads)]
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
    runs_out = now + runtime.lease_ms
    lease = Lease(epoch, runtime.instance, turn, attempts, runs_out, nonce, sweep_at=runs_out, version=version)
    return Commit(segment=Segment.of(records, nonce, now + runtime.ttl_ms), head=head, lease=lease)


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
    resumed = TurnResumed(reason="cancel", attempt=standing.lease.attempts if standing.lease else 0)
    interrupted = TurnInterrupted(reason="the session was deleted", by="owner")
    ended = fence(runtime, standing, head.turn.id, resumed, interrupted)
    assert ended.segment
    assert ended.head
    assert ended.lease
    buried = replace(ended.head, seq=ended.segment.last, turn=None, deleted=True)
    return replace(ended, head=buried, lease=replace(ended.lease, expires_at=0, sweep_at=None), control=control)


def documents_of(committed: Commit, control: Control | None) -> Standing:
    """What stands since the Commit of a fence, which leaves `control` as it was unless it writes it."""
    assert committed.segment
    return Standing(committed.head, committed.lease, committed.control or control, committed.segment.last)


def why_resumed(standing: Standing, turn: str, now: int) -> str | None:
    """Why a turn without a live lease is resumed; None: nobody asks for it, or its owner let go of it."""
    if cancel_of(standing.control, turn):
        return "cancel"
    lease = standing.lease
    if standing.head and standing.head.turn and standing.head.turn.status == "streaming":
        return "lease_expired" if lease is None or lease.expires_at else None
    if standing.control and standing.control.decisions.get(turn):
        return "decision"
    return "expiry" if lease and lease.sweep_at is not None and lease.sweep_at <= now else None


def lost_owners(standing: Standing) -> int:
    """How many owners of the turn were lost: a lease that ran out, not one that was let go, nor one that its owner had
    to leave."""
    lease = standing.lease
    if lease is None:
        return 1
    return lease.attempts + bool(lease.expires_at and lease.owner)


def doubt_of(standing: Standing) -> Doubt | None:
    """Whether a `once` tool may have been at work when the last owner was lost, and until when one could be begun."""
    ran_out = standing.lease.expires_at if standing.lease else standing.head.updated_at if standing.head else 0
    return Doubt(ran_out) if ran_out else None


def cancel_of(control: Control | None, turn: str) -> Cancel | None:
    return control.cancels.get(turn) if control else None


def newest(cancels: Mapping[str, Cancel], count: int) -> dict[str, Cancel]:
    return dict(sorted(cancels.items(), key=lambda entry: entry[1].at)[-count:])


def still_asked(runtime: Runtime, standing: Standing, control: Control) -> Control:
    """Without what was asked of the turn before, which has ended, and cancels of turns that did not begin in a TTL."""
    ended = standing.lease.turn if standing.lease else None
    oldest = runtime.clock() - runtime.ttl_ms
    cancels = {turn: cancel for turn, cancel in control.cancels.items() if turn != ended and cancel.at > oldest}
    return replace(control, cancels=cancels, decisions={})
