"""A model of one session with two owners, driven at random against a store: what holds after every step.

An owner is what the engine is to the journal: it renews before it appends once its lease has run out by its own clock,
unless it was frozen between looking and writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from journal.builders import NOW, clock, fence, finish, head, lease, segment, turn
from legato.errors import Conflict, LeaseLost, LegatoError
from legato.journal import Commit, Journal, Lease, Segment, SessionKey, Standing
from legato.journal.firestore import FirestoreJournal
from legato.journal.sqlite import SqliteJournal

LEASE = 15_000
OWNERS = st.sampled_from([0, 1])
PICKS = st.integers(0, 1000)


@dataclass(slots=True)
class Owner:
    """What one process believes: the lease it thinks it has and the position it would write next.

    `deleted`: the session was emptied since, and nothing stands where a frozen owner would write.
    """

    journal: Journal
    held: Lease | None = None
    next: int = 0
    deleted: bool = False


class Session(RuleBasedStateMachine):
    """`written` is what was acknowledged since `base`, the head when the session was last deleted.

    Who wins a race is left to chance, so no rule has a precondition: what is drawn must not depend on it.
    """

    def __init__(self, runner: asyncio.Runner, *journals: Journal) -> None:
        super().__init__()
        self.runner = runner
        self.owners = [Owner(journal) for journal in journals]
        self.key = SessionKey("ann", uuid4().hex)
        self.now, self.epoch, self.base = NOW, 0, 0
        self.holder: Owner | None = None
        self.written: list[Segment] = []
        self.acknowledged: list[Segment | Commit] = []
        self.nonces = map(str, count())

    def outcomes(self, *attempts: Awaitable[object]) -> list[object]:
        """For each attempt, all made at once, its answer or its refusal."""

        async def gathered() -> list[object]:
            return await asyncio.gather(*attempts, return_exceptions=True)

        return self.runner.run(gathered())

    def outcome(self, attempt: Awaitable[object]) -> object:
        (result,) = self.outcomes(attempt)
        assert result is None or not isinstance(result, BaseException) or isinstance(result, LegatoError), result
        return result

    def standing(self, owner: Owner) -> Standing:
        result = self.outcome(owner.journal.standing(self.key))
        assert isinstance(result, Standing)
        return result

    @property
    def seq(self) -> int:
        return self.written[-1].last if self.written else self.base

    def acquiring(self, standing: Standing, name: str) -> Commit:
        """The commit that starts a turn, or takes one over, by what was read."""
        epoch, nonce = standing.epoch + 1, next(self.nonces)
        taken = lease(epoch, name, nonce, expires_at=self.now + LEASE)
        taken = replace(taken, version=standing.lease.version if standing.lease else None)
        rest = replace(standing.head or head(), epoch=epoch, seq=standing.seq, deleted=False)
        return Commit(fence(standing.seq + 1, epoch, nonce), rest, taken, None, turn(f"t{nonce}"), new_turn=True)

    def acquired(self, owner: Owner, asked: Commit, result: object) -> None:
        assert isinstance(result, Commit)
        assert result == asked
        assert asked.segment
        assert result.lease
        owner.held, owner.next, owner.deleted = result.lease, asked.segment.last + 1, False
        self.holder, self.epoch = owner, result.lease.epoch
        self.written.append(asked.segment)
        self.acknowledged.append(asked)

    @rule(seconds=st.sampled_from([1, 8, 16]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000

    @rule(who=OWNERS)
    def start_or_take_over(self, who: int) -> None:
        owner = self.owners[who]
        standing = self.standing(owner)
        if not standing.owned(self.now):
            asked = self.acquiring(standing, f"owner {who}")
            self.acquired(owner, asked, self.outcome(owner.journal.commit(self.key, asked)))

    @rule()
    def both_start_or_take_over_at_once(self) -> None:
        standing = self.standing(self.owners[0])
        if standing.owned(self.now):
            return
        asked = [self.acquiring(standing, f"owner {who}") for who in (0, 1)]
        results = self.outcomes(*(self.owners[who].journal.commit(self.key, asked[who]) for who in (0, 1)))
        (won,) = [who for who in (0, 1) if isinstance(results[who], Commit)]
        assert isinstance(results[1 - won], Conflict)
        self.acquired(self.owners[won], asked[won], results[won])

    @rule(who=OWNERS)
    def renew(self, who: int) -> None:
        owner = self.owners[who]
        if owner.held is None:
            return
        asked = replace(owner.held, expires_at=self.now + LEASE, commit=next(self.nonces))
        result = self.outcome(owner.journal.renew(self.key, asked))
        if owner is self.holder:
            assert isinstance(result, Lease)
            assert result == asked
            assert isinstance(self.outcome(owner.journal.renew(self.key, replace(owner.held, commit="late"))), Conflict)
            owner.held = result
        else:
            assert isinstance(result, LeaseLost)
            owner.held = None

    @rule(who=OWNERS, events=st.integers(1, 4), frozen=st.booleans())
    def append(self, who: int, events: int, frozen: bool) -> None:
        owner = self.owners[who]
        if owner.held and owner.held.expires_at <= self.now and (owner.deleted or not frozen):
            self.renew(who)
        if owner.held is None:
            return
        last = owner.next + events - 1
        new = segment(owner.next, last, epoch=owner.held.epoch, commit=next(self.nonces))
        result = self.outcome(owner.journal.append(self.key, new))
        if owner is self.holder:
            assert result is None
            owner.next = last + 1
            self.written.append(new)
            self.acknowledged.append(new)
        else:
            assert isinstance(result, LeaseLost)
            owner.held = None

    @rule(who=OWNERS)
    def end_the_turn(self, who: int) -> None:
        owner = self.owners[who]
        stored = self.standing(owner).head
        if owner.held is None or stored is None:
            return
        asked = finish(owner.next, next(self.nonces), owner.held, stored)
        result = self.outcome(owner.journal.commit(self.key, asked))
        owner.held = None
        if owner is self.holder:
            assert result == asked
            assert asked.segment
            self.holder = None
            self.written.append(asked.segment)
            self.acknowledged.append(asked)
        else:
            assert isinstance(result, Conflict)

    @rule(who=OWNERS, hurried=st.booleans())
    def delete_the_session(self, who: int, hurried: bool) -> None:
        """`hurried`: the other owner starts a turn before the purge."""
        journal = self.owners[who].journal
        standing = self.standing(self.owners[who])
        if standing.owned(self.now) or standing.head is None:
            return
        asked = self.acquiring(standing, "nobody")
        assert asked.head
        assert asked.lease
        tombstone = replace(asked.head, seq=standing.seq + 1, turn=None, deleted=True)
        asked = replace(asked, head=tombstone, lease=replace(asked.lease, expires_at=0))
        committed = self.outcome(journal.commit(self.key, asked))
        assert isinstance(committed, Commit)
        assert committed.head
        assert asked.segment
        self.base, self.epoch, self.holder = standing.seq, tombstone.epoch, None
        self.written, self.acknowledged = [asked.segment], [asked]
        for owner in self.owners:
            owner.deleted = True
        if hurried:
            self.start_or_take_over(1 - who)
        assert self.outcome(journal.purge(self.key, committed.head)) is None

    @rule(who=OWNERS, pick=PICKS)
    def repeat_a_write_whose_answer_was_lost(self, who: int, pick: int) -> None:
        if not self.acknowledged:
            return
        old = self.acknowledged[pick % len(self.acknowledged)]
        journal = self.owners[who].journal
        if isinstance(old, Segment):
            assert self.outcome(journal.append(self.key, old)) is None
        else:
            assert self.outcome(journal.commit(self.key, old)) == old

    @rule(who=OWNERS, pick=PICKS)
    def write_something_else_at_a_taken_position(self, who: int, pick: int) -> None:
        if not self.written:
            return
        taken = self.written[pick % len(self.written)]
        other = replace(taken, commit="another")
        assert isinstance(self.outcome(self.owners[who].journal.append(self.key, other)), LeaseLost)

    @invariant()
    def what_was_acknowledged_is_there_unchanged_and_nothing_else(self) -> None:
        reads = (owner.journal.read(self.key, 0, NOW) for owner in self.owners)
        assert self.outcomes(*reads) == [self.written] * 2

    @invariant()
    def the_journal_has_no_hole_and_its_epochs_never_go_back(self) -> None:
        records = [record for segment in self.written for record in segment.records()]
        assert [record.seq for record in records] == list(range(self.base + 1, self.seq + 1))
        epochs = [record.epoch for record in records]
        assert epochs == sorted(epochs)

    @invariant()
    def positions_and_epochs_are_never_handed_out_twice(self) -> None:
        for owner in self.owners:
            standing = self.standing(owner)
            assert (standing.seq, standing.epoch) == (self.seq, self.epoch)


def drive(runner: asyncio.Runner, a: Journal, b: Journal, *, examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    bounds = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks)
    try:
        run_state_machine_as_test(partial(Session, runner, a, b), settings=bounds)  # type: ignore[arg-type]
    finally:
        runner.run(a.close())
        runner.run(b.close())


def test_the_model_holds_on_sqlite(tmp_path: Path) -> None:
    a, b = (SqliteJournal(tmp_path / "journal.sqlite", clock) for _ in "ab")
    with asyncio.Runner() as runner:
        drive(runner, a, b, examples=40, steps=30)


@pytest.mark.emulator
def test_the_model_holds_on_firestore(emulator: str, firestore_project: str) -> None:
    a, b = (FirestoreJournal(firestore_project, "(default)", emulator=emulator) for _ in "ab")
    with asyncio.Runner() as runner:
        drive(runner, a, b, examples=8, steps=20)
