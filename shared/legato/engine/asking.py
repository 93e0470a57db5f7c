"""What outsiders ask of a turn, as it is written into `control`. Pure."""

from __future__ import annotations

from dataclasses import replace

from legato.engine.runtime import Runtime
from legato.journal import Commit, Control, Decision, Standing


def noted(control: Control | None, turn: str, request: str, decision: Decision, expires_at: int) -> Control:
    """The control document with one more decision; a Commit of it fails where another was made meanwhile."""
    known = control or Control({}, expires_at)
    made = {**known.decisions.get(turn, {}), request: decision}
    return replace(known, decisions={**known.decisions, turn: made}, expires_at=expires_at)


def awaking(runtime: Runtime, standing: Standing, turn: str, control: Control) -> Commit:
    """Asks what `control` asks of `turn`. Where that waits the next sweep finds it, were this instance lost before it
    goes on with it; and whoever takes it over beside this has seen what is asked, or one of the two is refused."""
    active, lease = standing.head and standing.head.turn, standing.lease
    if lease and active and (active.id, active.status) == (turn, "waiting"):
        return Commit(control=control, lease=replace(lease, sweep_at=runtime.clock()))
    return Commit(control=control)


def decided(runtime: Runtime, standing: Standing, turn: str, request: str, decision: Decision) -> Commit:
    """A person's decision, refused where its turn was taken over, put to rest or ended since `standing`: the question
    may have been settled by then."""
    now = runtime.clock()
    commit = awaking(
        runtime, standing, turn, noted(standing.control, turn, request, decision, now + runtime.retention_ms)
    )
    if commit.lease or standing.head is None:
        return commit
    return replace(commit, head=replace(standing.head, updated_at=now))
