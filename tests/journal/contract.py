"""What every store of the journal must hold. A store's own test file supplies `open_journal` and nothing else.

`open_journal` is a fixture: a function that opens one more instance over the same, at first empty, store, as another
process would. `a` and `b` are two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pytest
from pydantic import JsonValue

from journal.builders import (
    EXPIRY,
    HOUR,
    KEY,
    NOW,
    control,
    decided,
    fence,
    finish,
    handed_back,
    head,
    lease,
    private,
    segment,
    start,
    takeover,
    tombstone,
    turn,
)
from legato.errors import Conflict, JournalRejected, JournalUnavailable, LeaseLost
from legato.events import Event, TextDelta
from legato.journal import (
    READ_BYTES,
    SEGMENT_BYTES,
    Commit,
    Control,
    Head,
    Journal,
    Lease,
    Place,
    Private,
    Segment,
    SessionKey,
    Standing,
)
from legato.turn import ToolState

OpenJournal = Callable[[], Journal]
T = TypeVar("T")


async def outcomes(*writes: Awaitable[T]) -> tuple[list[T], list[BaseException]]:
    """The answers and the errors of writes that are made at once."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    return [result for result in results if not isinstance(result, BaseException)], errors


async def everything(journal: Journal, key: SessionKey = KEY) -> tuple[Any, ...]:
    """All that can be read of a session, with versions."""
    standing = await journal.standing(key)
    versions = [document and document.version for document in (standing.head, standing.lease, standing.control)]
    return standing, versions, await journal.read(key, 0, NOW), await journal.turns(key, None, 100)


def there(document: T | None) -> T:
    assert document is not None
    return document


class Started(NamedTuple):
    head: Head
    lease: Lease


async def started(journal: Journal) -> Started:
    written = await journal.commit(KEY, start())
    return Started(there(written.head), there(written.lease))


async def buried(journal: Journal) -> Head:
    """Deletes the session but for its purge; gives its tombstone."""
    return there((await journal.commit(KEY, tombstone(await journal.standing(KEY)))).head)


async def standing_lease(journal: Journal) -> Lease | None:
    return (await journal.standing(KEY)).lease


class Fixtures:
    @pytest.fixture
    def a(self, open_journal: OpenJournal) -> Journal:
        return open_journal()

    @pytest.fixture
    def b(self, open_journal: OpenJournal) -> Journal:
        return open_journal()


class Races(Fixtures):
    async def test_of_two_owners_that_start_at_once_one_wins_and_the_loser_reads_the_winner(
        self, a: Journal, b: Journal
    ) -> None:
        won, lost = await outcomes(a.commit(KEY, start("c1", "a")), b.commit(KEY, start("c2", "b")))
        assert len(won) == 1
        assert [type(error) for error in lost] == [Conflict]
        for journal in (a, b):
            assert await standing_lease(journal) == won[0].lease
            assert await journal.read(KEY, 0, NOW) == [won[0].segment]

    async def test_of_twenty_takeovers_at_once_one_wins(self, a: Journal, b: Journal) -> None:
        stored = (await started(a)).lease
        both = ((a, f"a{n}") for n in range(10)), ((b, f"b{n}") for n in range(10))
        won, lost = await outcomes(*(j.commit(KEY, takeover(2, who, stored, who)) for each in both for j, who in each))
        assert len(won) == 1
        assert {type(error) for error in lost} == {Conflict}
        assert await standing_lease(a) == won[0].lease

    async def test_a_zombie_can_write_nothing_after_a_takeover(self, a: Journal, b: Journal) -> None:
        old = (await started(a)).lease
        await b.commit(KEY, takeover(2, "c2", old))
        before = await everything(b)
        with pytest.raises(LeaseLost):
            await a.append(KEY, segment(2, 4, commit="z1"))
        with pytest.raises(LeaseLost):
            await a.renew(KEY, replace(old, expires_at=NOW + HOUR, commit="z2"))
        with pytest.raises(Conflict):
            await a.commit(KEY, finish(2, "z3", old, there((await a.standing(KEY)).head)))
        assert await everything(b) == before

    async def test_of_an_append_and_a_takeover_at_one_position_one_wins(self, a: Journal, b: Journal) -> None:
        stored = (await started(a)).lease
        appended, taken = await asyncio.gather(
            a.append(KEY, segment(2, 3, commit="c2")), b.commit(KEY, takeover(2, "c3", stored)), return_exceptions=True
        )
        (newest,) = await a.read(KEY, 2, NOW)
        assert newest.commit == ("c2" if appended is None else "c3")
        assert (type(appended), type(taken)) in {(type(None), Conflict), (LeaseLost, Commit)}

    async def test_an_append_whose_answer_was_lost_is_repeated_with_success(self, a: Journal, b: Journal) -> None:
        await started(a)
        await a.append(KEY, segment(2, 4, commit="c2"))
        await a.append(KEY, segment(2, 4, commit="c2"))
        await b.append(KEY, segment(2, 4, commit="c2"))
        assert [s.first for s in await a.read(KEY, 0, NOW)] == [1, 2]

    async def test_another_segment_at_a_taken_position_has_lost_the_lease(self, a: Journal, b: Journal) -> None:
        await a.append(KEY, segment(1, 3, commit="c1"))
        with pytest.raises(LeaseLost):
            await b.append(KEY, segment(1, 3, commit="c2"))
        assert await b.read(KEY, 0, NOW) == [segment(1, 3, commit="c1")]

    async def test_an_append_sent_twice_at_once_succeeds_twice(self, a: Journal, b: Journal) -> None:
        same = segment(1, 3, commit="c1")
        _, lost = await outcomes(a.append(KEY, same), b.append(KEY, same), a.append(KEY, same))
        assert lost == []
        assert await a.read(KEY, 0, NOW) == [same]

    async def test_a_commit_repeated_succeeds_with_versions_that_fit_the_next_write(
        self, a: Journal, b: Journal
    ) -> None:
        first = await a.commit(KEY, replace(start(), control=control("t1")))
        again = await b.commit(KEY, replace(start(), control=control("t1")))
        assert again == first
        await b.renew(KEY, replace(there(again.lease), expires_at=NOW + HOUR, commit="c2"))
        changed = replace(there(again.head), seq=1), None, replace(there(again.control), expires_at=NOW)
        await b.commit(KEY, Commit(None, *changed))

    async def test_a_commit_repeated_after_others_wrote_gives_versions_that_fit_nothing(
        self, a: Journal, b: Journal
    ) -> None:
        first = await a.commit(KEY, replace(start(), control=control("t1")))
        await b.commit(KEY, Commit(control=control("t1", "t2", version=there(first.control).version)))
        again = await a.commit(KEY, replace(start(), control=control("t1")))
        with pytest.raises(Conflict):
            await a.commit(KEY, Commit(control=again.control))
        assert await a.control(KEY) == control("t1", "t2")

    async def test_two_cancels_of_different_turns_are_both_kept(self, a: Journal, b: Journal) -> None:
        async def cancel(journal: Journal, name: str) -> None:
            while True:
                stored = await journal.control(KEY)
                names = {*stored.cancels, name} if stored else {name}
                try:
                    await journal.commit(KEY, Commit(control=control(*names, version=stored and stored.version)))
                    return
                except Conflict:
                    continue

        await asyncio.gather(*(cancel(journal, f"t{n}") for n, journal in enumerate([a, b, a, b, a])))
        assert await a.control(KEY) == control("t0", "t1", "t2", "t3", "t4")

    async def test_of_twenty_decisions_at_once_one_wins(self, a: Journal, b: Journal) -> None:
        stored = there((await a.commit(KEY, Commit(control=control("t0")))).control)
        asked = (decided("t1", f"r{n}", version=stored.version) for n in range(20))
        won, lost = await outcomes(*(j.commit(KEY, Commit(control=c)) for j, c in zip([a, b] * 10, asked, strict=True)))
        assert len(won) == 1
        assert {type(error) for error in lost} == {Conflict}
        assert await b.control(KEY) == won[0].control

    async def test_decisions_and_cancels_are_kept_beside_each_other(self, a: Journal, b: Journal) -> None:
        both = replace(control("t1", "t2"), decisions=decided("t1", "r1", "no").decisions)
        await a.commit(KEY, Commit(control=both))
        assert await b.control(KEY) == (await b.standing(KEY)).control == both


class Leases(Fixtures):
    async def test_a_renewal_gives_the_lease_back_with_its_new_version(self, a: Journal, b: Journal) -> None:
        held = (await started(a)).lease
        for n in range(3):
            asked = replace(held, expires_at=NOW + n, commit=f"r{n}")
            held = await a.renew(KEY, asked)
            assert held == asked
        assert await standing_lease(b) == held
        assert there(await standing_lease(b)).version == held.version

    async def test_a_renewal_leaves_the_stored_time_of_the_sweep_as_it_is(self, a: Journal, b: Journal) -> None:
        kept = there((await a.commit(KEY, Commit(lease=lease(sweep_at=NOW)))).lease)
        asked = replace(kept, sweep_at=None, commit="r1")
        for journal in (a, b):
            assert await journal.renew(KEY, asked) == asked
        assert await standing_lease(b) == replace(asked, sweep_at=NOW)

    async def test_a_commit_takes_the_time_of_the_sweep_away(self, a: Journal) -> None:
        kept = there((await a.commit(KEY, Commit(lease=lease(sweep_at=NOW)))).lease)
        await a.commit(KEY, Commit(lease=replace(kept, sweep_at=None)))
        assert await standing_lease(a) == lease()

    async def test_a_renewal_with_a_stale_version_is_a_conflict(self, a: Journal) -> None:
        held = (await started(a)).lease
        await a.renew(KEY, replace(held, expires_at=NOW + 1, commit="r1"))
        with pytest.raises(Conflict):
            await a.renew(KEY, replace(held, expires_at=NOW + 2, commit="r2"))
        assert there(await standing_lease(a)).expires_at == NOW + 1

    async def test_a_renewal_whose_answer_was_lost_is_repeated_with_success(self, a: Journal) -> None:
        held = (await started(a)).lease
        asked = replace(held, expires_at=NOW + 1, commit="r1")
        assert (await a.renew(KEY, asked)).version == (await a.renew(KEY, asked)).version

    async def test_a_renewal_where_there_is_no_lease_has_lost_it(self, a: Journal) -> None:
        held = (await started(a)).lease
        await a.purge(KEY, await buried(a))
        with pytest.raises(LeaseLost):
            await a.renew(KEY, replace(held, commit="r1"))
        assert await standing_lease(a) is None

    async def test_a_renewal_that_comes_after_the_release_changes_nothing(self, a: Journal) -> None:
        first = await started(a)
        await a.commit(KEY, finish(2, "c2", first.lease, first.head))
        with pytest.raises(Conflict):
            await a.renew(KEY, replace(first.lease, expires_at=NOW + HOUR, commit="r1"))
        assert not (await a.standing(KEY)).owned(NOW)

    async def test_a_version_read_before_a_purge_does_not_fit_what_came_after(self, a: Journal) -> None:
        first = await started(a)
        await a.purge(KEY, await buried(a))
        await a.commit(KEY, Commit(lease=lease(2, "b", "c2")))
        with pytest.raises(Conflict):
            await a.commit(KEY, Commit(lease=replace(first.lease, commit="z")))
        assert there(await standing_lease(a)).epoch == 2


class Documents(NamedTuple):
    """What a commit can hold beside its segment and its turn."""

    head: Head
    lease: Lease
    control: Control

    @classmethod
    def of(cls, commit: Commit) -> Documents:
        return cls(there(commit.head), there(commit.lease), there(commit.control))

    def at(self, versions: Documents) -> Documents:
        """The same, with the versions of others."""
        return Documents(
            replace(self.head, version=versions.head.version),
            replace(self.lease, version=versions.lease.version),
            replace(self.control, version=versions.control.version),
        )


NEW = Documents(head(2, 5), lease(2, "b", "c2"), control("t1"))


def step(documents: Documents) -> Commit:
    return Commit(fence(2, 2, "c2"), *documents, turn("t2", 2), new_turn=True)


WRONG: dict[str, Callable[[Documents, Documents], Commit]] = {
    "segment taken": lambda good, old: replace(step(good), segment=fence(1, 2, "other")),
    "head stale": lambda good, old: step(good._replace(head=good.at(old).head)),
    "head exists": lambda good, old: step(good._replace(head=NEW.head)),
    "lease stale": lambda good, old: step(good._replace(lease=good.at(old).lease)),
    "lease exists": lambda good, old: step(good._replace(lease=NEW.lease)),
    "control stale": lambda good, old: step(good._replace(control=good.at(old).control)),
    "control exists": lambda good, old: step(good._replace(control=NEW.control)),
    "turn exists": lambda good, old: replace(step(good), turn=turn("t1")),
}


class Atomicity(Fixtures):
    @pytest.fixture
    async def old(self, a: Journal) -> Documents:
        return Documents.of(await a.commit(KEY, replace(start(), control=control("t0"))))

    @pytest.fixture
    async def good(self, a: Journal, old: Documents) -> Documents:
        """Documents that fit what is stored, where every version of `old` is stale."""
        changed = old._replace(lease=replace(old.lease, commit="r1"), head=replace(old.head, seq=1))
        changed = changed._replace(control=replace(old.control, expires_at=NOW))
        return NEW.at(Documents.of(await a.commit(KEY, Commit(None, *changed))))

    async def test_a_commit_of_every_kind_of_document_writes_them_all(
        self, a: Journal, b: Journal, good: Documents
    ) -> None:
        written = Documents.of(await a.commit(KEY, step(good)))
        standing, versions, segments, turns = await everything(b)
        assert standing == Standing(*good, 2)
        assert versions == [document.version for document in written]
        assert segments[1:] == [fence(2, 2, "c2")]
        assert turns == [turn("t1"), turn("t2", 2)]

    @pytest.mark.parametrize("wrong", WRONG)
    async def test_one_failing_precondition_writes_nothing_at_all(
        self, a: Journal, old: Documents, good: Documents, wrong: str
    ) -> None:
        before = await everything(a)
        with pytest.raises(Conflict):
            await a.commit(KEY, WRONG[wrong](good, old))
        assert await everything(a) == before
        await a.commit(KEY, step(good))

    @pytest.mark.parametrize("name", ["head", "lease", "control"])
    async def test_a_document_that_is_not_there_fits_no_version(self, a: Journal, good: Documents, name: str) -> None:
        empty = SessionKey("ann", "empty")
        with pytest.raises(Conflict):
            await a.commit(empty, replace(step(NEW), **{name: getattr(good, name)}))
        assert await everything(a, empty) == (Standing(None, None, None, 0), [None] * 3, [], [])

    async def test_a_turn_that_is_not_new_replaces_what_is_stored(self, a: Journal) -> None:
        await started(a)
        ended = turn("t1", status="completed", output="done", last=3, ended_at=NOW)
        await a.commit(KEY, Commit(turn=ended))
        assert await a.turn(KEY, "t1") == ended


def event_of(size: int, seq: int = 1, expires_at: int = EXPIRY) -> Segment:
    """One event of about `size` bytes, whose characters take 1, 2, 3 and 4 bytes and meet every boundary."""
    text = "aé€😀" * (size // 10)
    return Segment.of([Event(seq, 1, "t1", NOW, TextDelta(step=1, text=text)).encode()], "c1", expires_at)


def bytes_of(segments: list[Segment]) -> int:
    return sum(len(segment.events.encode()) for segment in segments)


class Bytes(Fixtures):
    async def test_a_full_segment_is_read_back_byte_for_byte(self, a: Journal, b: Journal) -> None:
        full = segment(1, 102, text="😀é" * 1490)
        assert SEGMENT_BYTES - 8192 < len(full.events.encode()) < SEGMENT_BYTES
        await a.append(KEY, full)
        assert await b.read(KEY, 0, NOW) == [full]

    @pytest.mark.parametrize("size", [900 * 1024, 1024 * 1024 + 1, 1100 * 1024 + 2, 2 * 1024 * 1024 + 3])
    async def test_an_event_too_large_for_one_document_is_read_back_byte_for_byte(
        self, a: Journal, b: Journal, size: int
    ) -> None:
        large = event_of(size)
        await a.append(KEY, large)
        await a.append(KEY, segment(2, commit="c2"))
        await a.append(KEY, large)
        assert await b.read(KEY, 0, NOW) == [large, segment(2, commit="c2")]
        assert (await b.standing(KEY)).last == 2

    async def test_a_large_event_in_a_commit_is_read_back_byte_for_byte(self, a: Journal, b: Journal) -> None:
        large = event_of(2 * 1024 * 1024)
        await a.commit(KEY, replace(start(), segment=large))
        assert await b.read(KEY, 0, NOW) == [large]
        assert await a.commit(KEY, replace(start(), segment=large))

    async def test_a_position_taken_by_a_large_event_is_taken(self, a: Journal, b: Journal) -> None:
        await a.append(KEY, event_of(1100 * 1024))
        with pytest.raises(LeaseLost):
            await b.append(KEY, segment(1, commit="c2"))
        with pytest.raises(LeaseLost):
            await b.append(KEY, replace(event_of(2 * 1024 * 1024), commit="c3"))
        assert await b.read(KEY, 0, NOW) == [event_of(1100 * 1024)]

    async def test_what_is_over_the_limit_is_rejected_and_not_written(self, a: Journal) -> None:
        with pytest.raises(JournalRejected):
            await a.append(KEY, event_of(5 * 1024 * 1024))
        with pytest.raises(JournalRejected):
            await a.commit(KEY, replace(start(), segment=event_of(5 * 1024 * 1024)))
        assert await a.standing(KEY) == Standing(None, None, None, 0)

    async def test_what_is_not_unicode_is_rejected_and_not_written(self, a: Journal) -> None:
        with pytest.raises(JournalRejected):
            await a.append(KEY, replace(segment(1), events=segment(1).events.replace("w", "\ud800")))
        with pytest.raises(JournalRejected):
            await a.commit(KEY, replace(start(), turn=turn(output="\udc00")))
        assert await a.standing(KEY) == Standing(None, None, None, 0)

    async def test_every_field_of_a_turn_is_read_back_as_it_was_written(self, a: Journal, b: Journal) -> None:
        tool = ToolState("1-1", 1, "look", {"a": [1, None, "é😀"]}, "read", "error", None, None, "m", 0.5)
        odd: JsonValue = {"": [None, True, 1.5, -(2**53), "\u0000\u2028\r\n", {"nested": [[], [{}]]}]}
        full = turn(
            input=odd, last=9, ended_at=NOW + 9, output="", partial="p😀", tools=(tool, replace(tool, content=odd)),
            error={"code": "x", "message": "y"}, usage={"input": 1, "output": 0}, finish_reason="length",
            retry_of="t0",
        )  # fmt: skip
        await a.commit(KEY, Commit(turn=full, new_turn=True))
        assert await b.turn(KEY, "t1") == full
        assert await b.turns(KEY, None, 9) == [full]


class Reading(Fixtures):
    async def fill(self, journal: Journal, *firsts: int, size: int = 3, expired: tuple[int, ...] = ()) -> None:
        for first in firsts:
            expires_at = NOW if first in expired else EXPIRY
            await journal.append(KEY, segment(first, first + size - 1, commit=f"c{first}", expires_at=expires_at))

    async def firsts(self, journal: Journal, since: int = 0, limit: int = 1000, now: int = NOW) -> list[int]:
        return [segment.first for segment in await journal.read(KEY, since, now, limit)]

    async def test_a_session_nobody_wrote_is_empty(self, a: Journal) -> None:
        standing = await a.standing(KEY)
        assert standing == Standing(None, None, None, 0)
        assert (standing.seq, standing.epoch, standing.owned(NOW)) == (0, 0, False)
        assert await a.read(KEY, 0, NOW) == []
        assert await a.turn(KEY, "t1") is None
        assert await a.control(KEY) is None

    async def test_reading_since_an_event_begins_with_the_segment_that_holds_it(self, a: Journal) -> None:
        await self.fill(a, 1, 4, 7)
        assert [await self.firsts(a, since) for since in (0, 1, 3)] == [[1, 4, 7]] * 3
        assert [await self.firsts(a, since) for since in (4, 5, 6)] == [[4, 7]] * 3
        assert [await self.firsts(a, since) for since in (7, 9, 10, 10**9)] == [[7], [7], [], []]

    async def test_segments_come_in_order_whatever_the_order_and_length_of_their_numbers(self, a: Journal) -> None:
        numbers = [1, 9, 10, 99, 100, 999, 1000, 123456789012]
        await asyncio.gather(*(self.fill(a, first, size=1) for first in reversed(numbers)))
        assert await self.firsts(a) == numbers
        assert (await a.standing(KEY)).last == 123456789012

    async def test_paging_with_a_limit_gives_every_segment_once(self, a: Journal) -> None:
        firsts = list(range(1, 226, 3))
        await asyncio.gather(*(self.fill(a, first) for first in firsts))
        pages, since = [], 0
        while page := await a.read(KEY, since, NOW, 20):
            pages.append([segment.first for segment in page])
            since = page[-1].last + 1
        assert [len(page) for page in pages] == [20, 20, 20, 15]
        assert [first for page in pages for first in page] == await self.firsts(a) == firsts

    async def test_a_read_ends_with_the_segment_that_passes_its_bytes(self, a: Journal) -> None:
        """Reading on gives the rest, each segment once; one of them lies in parts across the bound."""
        segments = [event_of(850 * 1024, first) for first in range(1, 10)]
        segments += [event_of(2 * 1024 * 1024, 10), *(event_of(850 * 1024, first) for first in (11, 12))]
        for one in segments:
            await a.append(KEY, one)
        page = await a.read(KEY, 0, NOW)
        assert bytes_of(page[:-1]) <= READ_BYTES < bytes_of(page)
        assert [*page, *await a.read(KEY, page[-1].last + 1, NOW)] == segments

    async def test_a_read_passes_by_expired_bytes_of_any_number(self, a: Journal) -> None:
        for first in range(1, 12):
            await a.append(KEY, event_of(850 * 1024, first, expires_at=NOW))
        await a.append(KEY, segment(12))
        assert await a.read(KEY, 0, NOW) == [segment(12)]

    async def test_expired_segments_are_left_out_and_a_hole_shows(self, a: Journal) -> None:
        await self.fill(a, 1, 4, 7, 10, expired=(1, 7))
        found = await a.read(KEY, 0, NOW)
        assert [(segment.first, segment.last) for segment in found] == [(4, 6), (10, 12)]
        assert await self.firsts(a, since=8) == [10]
        assert await self.firsts(a, now=NOW - 1) == [1, 4, 7, 10]

    async def test_a_limit_counts_only_what_has_not_expired(self, a: Journal) -> None:
        await self.fill(a, *range(1, 31, 3), expired=tuple(range(1, 25, 3)))
        assert await self.firsts(a, limit=2) == [25, 28]
        assert await self.firsts(a, limit=1) == [25]

    async def test_the_standing_counts_expired_segments(self, a: Journal) -> None:
        await self.fill(a, 1, 4, expired=(1, 4))
        assert await a.read(KEY, 0, NOW) == []
        assert (await a.standing(KEY)).seq == 6

    async def test_the_standing_counts_the_head_where_segments_are_gone(self, a: Journal) -> None:
        await a.commit(KEY, Commit(head=head(7, 40), lease=lease(3)))
        standing = await a.standing(KEY)
        assert (standing.seq, standing.epoch) == (40, 7)

    async def test_the_head_is_trusted_only_where_no_turn_is_active(self, a: Journal) -> None:
        await started(a)
        await a.append(KEY, segment(2))
        active = await a.standing(KEY)
        assert await a.standing(KEY, trust_head=True) == active
        await a.commit(KEY, finish(3, "z", there(active.lease), there(active.head)))
        assert (await a.standing(KEY, trust_head=True)).seq == (await a.standing(KEY)).seq == 3

    async def test_turns_are_paged_backwards_each_page_oldest_first(self, a: Journal) -> None:
        records = [turn(f"t{n}", n) for n in (1, 5, 9, 20, 100)]
        await asyncio.gather(*(a.commit(KEY, Commit(turn=record, new_turn=True)) for record in records))
        assert await a.turns(KEY, None, 2) == records[3:]
        assert await a.turns(KEY, 20, 2) == records[1:3]
        assert await a.turns(KEY, 5, 2) == records[:1]
        assert await a.turns(KEY, 1, 2) == []

    async def test_sessions_are_paged_newest_first_without_the_deleted(self, a: Journal) -> None:
        heads = {f"s{n}": head(at=NOW + n, deleted=n % 3 == 0) for n in range(10)}
        await asyncio.gather(*(a.commit(SessionKey("ann", name), Commit(head=h)) for name, h in heads.items()))
        await a.commit(SessionKey("bob", "s99"), Commit(head=head(at=NOW + 99)))
        first = await a.sessions("ann", None, 4)
        assert [item.session for item in first] == ["s8", "s7", "s5", "s4"]
        assert [item.head for item in first] == [heads[item.session] for item in first]
        assert [item.session for item in await a.sessions("ann", first[-1].place, 4)] == ["s2", "s1"]

    async def test_sessions_of_one_millisecond_are_paged_one_by_one(self, a: Journal) -> None:
        names = [f"s{n}" for n in (1, 10, 2, 3)]
        await asyncio.gather(*(a.commit(SessionKey("ann", name), Commit(head=head())) for name in names))
        listed, place = [], None
        while page := await a.sessions("ann", place, 1):
            listed.append(page[0].session)
            place = Place.parse(str(page[0].place))
        assert listed == ["s3", "s2", "s10", "s1"]

    async def test_a_listed_head_carries_the_version_that_fits(self, a: Journal) -> None:
        await started(a)
        ((_, stored),) = await a.sessions("ann", None, 1)
        await a.commit(KEY, Commit(head=replace(stored, seq=9)))
        assert (await a.standing(KEY)).seq == 9


class Privates(Fixtures):
    async def write(self, journal: Journal, *privates: Private) -> None:
        await journal.commit(KEY, Commit(private=privates))

    async def test_what_one_turn_keeps_is_read_by_its_names(self, a: Journal, b: Journal) -> None:
        await self.write(a, private("step.model", '"one"'), private("checkpoint", "2"), private("x", "3", "t10"))
        await self.write(a, private("x", "4", "t"), private("x", "5", "t1-"), private("x", "6", "T1"))
        assert await b.private(KEY, "t1", NOW) == {"step.model": '"one"', "checkpoint": "2"}
        assert await b.private(SessionKey("ann", "s"), "t1", NOW) == {}

    async def test_a_stream_s_private_text_is_none_of_a_turn_called_stream(self, a: Journal) -> None:
        await self.write(a, private("auth", "1", "stream.st1"), private("x", "2", "stream"))
        assert await a.private(KEY, "stream", NOW) == {"x": "2"}
        assert await a.private(KEY, "stream.st1", NOW) == {"auth": "1"}

    async def test_a_later_text_replaces_and_none_deletes(self, a: Journal) -> None:
        await self.write(a, private("x", "1"), private("y", "2"))
        await self.write(a, private("x", "3"), private("y", None), private("z", None))
        assert await a.private(KEY, "t1", NOW) == {"x": "3"}

    async def test_an_expired_text_is_left_out(self, a: Journal) -> None:
        await self.write(a, private("x", expires_at=NOW), private("y", "1", expires_at=NOW + 1))
        assert await a.private(KEY, "t1", NOW) == {"y": "1"}

    @pytest.mark.parametrize("sizes", [(2200, 1), (2200, 1000), (1000, 2200), (2200, 2100)])
    async def test_large_texts_replace_each_other_byte_for_byte(self, a: Journal, sizes: tuple[int, ...]) -> None:
        for n, size in enumerate(sizes):
            text = f'"{n}' + "aé€😀" * (size * 1024 // 10) + '"'
            await self.write(a, private("x", text), private("x.1", "1"), private("x.2", "2"))
            assert await a.private(KEY, "t1", NOW) == {"x": text, "x.1": "1", "x.2": "2"}
        await self.write(a, private("x", None))
        assert await a.private(KEY, "t1", NOW) == {"x.1": "1", "x.2": "2"}

    async def test_names_of_odd_characters_never_meet(self, a: Journal) -> None:
        names = [
            "",
            ".",
            "..",
            "/",
            "%2F",
            "%",
            "a",
            "a.",
            "a.1",
            "a%.1",
            "a#2",
            "A",
            "__a__",
            "é",
            "e\u0301",
            "😀" * 128,
            "\n",
        ]
        await self.write(a, *(private(name, f'"{n}"') for n, name in enumerate(names)))
        assert await a.private(KEY, "t1", NOW) == {name: f'"{n}"' for n, name in enumerate(names)}

    async def test_what_replaces_only_what_stands_is_a_conflict_where_nothing_does(self, a: Journal) -> None:
        await self.write(a, private("x", "1"))
        await self.write(a, private("x", "2")._replace(stands=True))
        with pytest.raises(Conflict):
            await self.write(a, private("x", "3"), private("y", "4")._replace(stands=True))
        assert await a.private(KEY, "t1", NOW) == {"x": "2"}

    async def test_a_commit_that_is_refused_writes_no_private_text(self, a: Journal) -> None:
        await started(a)
        await self.write(a, private("x", "1"))
        with pytest.raises(Conflict):
            await a.commit(KEY, replace(start("other"), private=(private("x", None), private("y"))))
        assert await a.private(KEY, "t1", NOW) == {"x": "1"}

    async def test_a_commit_repeated_gives_back_its_private_texts(self, a: Journal, b: Journal) -> None:
        asked = Commit(segment(1), private=(private("x", "1"), private("y", None)))
        assert await a.commit(KEY, asked) == asked
        assert await b.commit(KEY, asked) == asked

    async def test_a_commit_counts_its_private_texts(self, a: Journal) -> None:
        half = "w" * (1600 * 1024)
        with pytest.raises(JournalRejected):
            await a.commit(KEY, replace(start(), private=(private("x", half), private("y", half))))
        assert await a.standing(KEY) == Standing(None, None, None, 0)
        assert await a.private(KEY, "t1", NOW) == {}

    async def test_a_purge_deletes_what_was_kept_before_the_tombstone(self, a: Journal, b: Journal) -> None:
        other = SessionKey("ann", "s2")
        await a.commit(KEY, replace(start(), private=(private("x", "w" * 2_000_000), private("y"))))
        await a.commit(other, replace(start(), private=(private("x"),)))
        tomb = await buried(a)
        await b.commit(KEY, Commit(turn=turn("t1", 9), private=(private("z"), private("z", turn="t2"))))
        await a.purge(KEY, tomb)
        assert [await a.private(KEY, name, NOW) for name in ("t1", "t2")] == [{"z": "{}"}] * 2
        assert await a.private(other, "t1", NOW) == {"x": "{}"}


class Sweeping(Fixtures):
    async def leave(self, journal: Journal, key: SessionKey, sweep_at: int | None, expires_at: int = NOW) -> None:
        await journal.commit(key, Commit(lease=lease(expires_at=expires_at, sweep_at=sweep_at)))

    async def test_orphans_are_due_and_have_no_live_lease(self, a: Journal, b: Journal) -> None:
        cases = {"due": (NOW, NOW), "later": (NOW + 1, NOW), "never": (None, NOW), "live": (NOW, NOW + 1)}
        for name, (sweep_at, expires_at) in cases.items():
            await self.leave(a, SessionKey("ann", name), sweep_at, expires_at)
        assert await b.orphans(NOW, 9) == [SessionKey("ann", "due")]

    async def test_a_released_lease_is_an_orphan_until_a_commit_takes_its_time_away(self, a: Journal) -> None:
        held = there((await a.commit(KEY, Commit(lease=lease(sweep_at=NOW)))).lease)
        held = there((await a.commit(KEY, Commit(lease=replace(held, expires_at=0)))).lease)
        assert await a.orphans(NOW, 9) == [KEY]
        await a.commit(KEY, Commit(lease=replace(held, sweep_at=None)))
        assert await a.orphans(NOW, 9) == []

    async def test_a_decision_makes_an_orphan_of_its_session_where_its_lease_stands(self, a: Journal) -> None:
        held = there((await a.commit(KEY, Commit(lease=lease(sweep_at=EXPIRY)))).lease)
        held = there((await a.commit(KEY, Commit(lease=replace(held, expires_at=0)))).lease)
        written = await a.commit(KEY, Commit(control=decided("t1", "r1"), lease=replace(held, sweep_at=NOW)))
        assert await a.orphans(NOW, 9) == [KEY]
        late = decided("t1", "r1", "r2", version=there(written.control).version)
        with pytest.raises(Conflict):
            await a.commit(KEY, Commit(control=late, lease=replace(held, sweep_at=None)))
        assert await a.control(KEY) == written.control

    async def test_orphans_come_oldest_first_and_no_more_than_asked_for(self, a: Journal) -> None:
        keys = [SessionKey(f"u{n % 3}", f"s{n}") for n in range(20)]
        await asyncio.gather(*(self.leave(a, key, NOW - n) for n, key in enumerate(keys)))
        assert await a.orphans(NOW, 100) == keys[::-1]
        assert await a.orphans(NOW, 7) == keys[:-8:-1]

    async def test_live_leases_hide_no_orphan_behind_them(self, a: Journal) -> None:
        live = (self.leave(a, SessionKey("ann", f"s{n}"), NOW - 9, EXPIRY) for n in range(1000))
        await asyncio.gather(*live, self.leave(a, KEY._replace(uid="bob"), NOW))
        assert await a.orphans(NOW, 1) == [KEY._replace(uid="bob")]

    async def test_orphans_of_odd_ids_are_told_as_they_were_written(self, a: Journal) -> None:
        odd = [
            SessionKey(uid, f"s{n}") for n, uid in enumerate(["a/b", "a%2Fb", ".", "..", "__a__", "é 😀", "%", "\n"])
        ]
        await asyncio.gather(*(self.leave(a, key, NOW) for key in odd))
        assert sorted(await a.orphans(NOW, 99)) == sorted(odd)


class Deleting(Fixtures):
    async def test_a_purge_leaves_the_head_and_nothing_else(self, a: Journal, b: Journal) -> None:
        await a.commit(KEY, replace(start(), control=control("t1")))
        await asyncio.gather(*(a.append(KEY, segment(n, commit=f"c{n}")) for n in range(2, 40)))
        tomb = await buried(a)
        await a.purge(KEY, tomb)
        await b.purge(KEY, tomb)
        standing, versions, *rest = await everything(b)
        assert standing == Standing(tomb, None, None, 0)
        assert versions == [tomb.version, None, None]
        assert rest == [[], []]

    @pytest.mark.parametrize("asked", [control("t1"), decided("t1", "r1")])
    async def test_a_purge_leaves_what_is_asked_since(self, a: Journal, asked: Control) -> None:
        await started(a)
        tomb = await buried(a)
        await a.commit(KEY, Commit(control=asked))
        await a.purge(KEY, tomb)
        assert await a.control(KEY) == asked

    async def test_a_purge_touches_no_other_session(self, a: Journal) -> None:
        others = [SessionKey("ann", "s10"), SessionKey("ann", "s"), SessionKey("ann2", "s1"), SessionKey("an", "s1")]
        for key in (KEY, *others):
            await a.commit(key, start())
        await a.purge(KEY, await buried(a))
        for key in others:
            assert await a.read(key, 0, NOW) == [start().segment]
            assert await a.turn(key, "t1") == turn()

    async def test_what_begins_between_tombstone_and_purge_is_not_purged(self, a: Journal, b: Journal) -> None:
        await a.commit(KEY, replace(start(), control=control("t1")))
        tomb = await buried(a)
        old = await a.standing(KEY)
        new = Documents(head(3, 1, version=tomb.version), there(old.lease), control("t2"))
        new = new._replace(lease=lease(3, "b", version=new.lease.version))
        new = new._replace(control=control("t2", version=there(old.control).version))
        await b.commit(KEY, Commit(fence(2, 3, "c2"), *new, turn("t2", 2), new_turn=True))
        await b.append(KEY, segment(3, 5, epoch=3))
        await a.purge(KEY, tomb)
        standing, _, segments, turns = await everything(a)
        assert standing == Standing(*new, 5)
        assert segments == [fence(2, 3, "c2"), segment(3, 5, epoch=3)]
        assert turns == [turn("t2", 2)]

    async def test_a_fence_that_the_purge_spares_stops_a_zombie(self, a: Journal, b: Journal) -> None:
        first = await started(a)
        tomb = replace(first.head, epoch=2, seq=2, turn=None, deleted=True)
        written = await b.commit(KEY, replace(takeover(2, "c2", first.lease), head=tomb))
        await b.purge(KEY, there(written.head))
        with pytest.raises(LeaseLost):
            await a.append(KEY, segment(2, 4, commit="zombie"))
        assert [stored.commit for stored in await b.read(KEY, 0, NOW)] == ["c2"]

    async def test_the_tombstone_keeps_positions_and_epochs_from_coming_back(self, a: Journal, b: Journal) -> None:
        first = await started(a)
        await a.append(KEY, segment(2, 4, commit="zombie"))
        tomb = replace(first.head, epoch=2, seq=5, turn=None, deleted=True)
        written = await b.commit(KEY, replace(takeover(5, "c2", first.lease), head=tomb))
        await b.purge(KEY, there(written.head))
        await a.append(KEY, segment(2, 4, commit="zombie"))
        standing = await b.standing(KEY)
        assert (standing.epoch, standing.seq) == (2, 5)
        with pytest.raises(LeaseLost):
            await a.renew(KEY, replace(first.lease, commit="zombie"))


class Company(Fixtures):
    """Writes that share a group do not share its fate."""

    async def test_two_hundred_sessions_append_at_once_each_in_order(self, a: Journal, b: Journal) -> None:
        keys = [SessionKey(f"u{n % 7}", f"s{n}") for n in range(200)]

        async def write(key: SessionKey) -> None:
            for n in range(1, 21):
                await a.append(key, segment(n, commit=f"{key}-{n}", text=f"{key}"))

        await asyncio.gather(*map(write, keys))
        for key in keys:
            found = await b.read(key, 0, NOW)
            assert found == [segment(n, commit=f"{key}-{n}", text=f"{key}") for n in range(1, 21)]

    async def test_a_write_that_is_refused_harms_nobody_else(self, a: Journal) -> None:
        good = [SessionKey("ann", f"s{n}") for n in range(20)]
        await a.append(KEY, segment(1))
        bad = [
            a.append(KEY, segment(1, commit="other")),
            a.append(SessionKey("bob", "big"), event_of(5 * 1024 * 1024)),
            a.append(SessionKey("bob", "bad"), replace(segment(1), events="\ud800")),
            a.commit(KEY, start("other")),
            a.renew(KEY, lease()),
        ]
        _, errors = await outcomes(*bad[:3], *(a.append(key, segment(1)) for key in good if key != KEY), *bad[3:])
        assert [type(error) for error in errors] == [LeaseLost, JournalRejected, JournalRejected, Conflict, LeaseLost]
        assert [await a.read(key, 0, NOW) for key in good] == [[segment(1)]] * 20

    async def test_a_waiter_that_gives_up_disturbs_nobody(self, a: Journal) -> None:
        keys = [SessionKey("ann", f"s{n}") for n in range(30)]
        writes = [asyncio.create_task(a.append(key, segment(1))) for key in keys]
        await asyncio.sleep(0)
        for task in writes[::2]:
            task.cancel()
        await asyncio.wait(writes)
        assert [task.exception() for task in writes[1::2]] == [None] * 15
        for key in keys:
            await a.append(key, segment(1))
            assert await a.read(key, 0, NOW) == [segment(1)]

    async def test_what_is_pending_is_written_before_the_journal_closes(self, a: Journal, b: Journal) -> None:
        writes = [asyncio.create_task(a.append(SessionKey("ann", f"s{n}"), segment(1))) for n in range(30)]
        await asyncio.sleep(0)
        await a.close()
        await asyncio.gather(*writes)
        assert [await b.read(SessionKey("ann", f"s{n}"), 0, NOW) for n in range(30)] == [[segment(1)]] * 30

    async def test_ids_of_odd_characters_never_meet(self, a: Journal, b: Journal) -> None:
        odd = [
            "a/b",
            "a%2Fb",
            "a%252Fb",
            "a",
            "a ",
            " a",
            "A",
            ".",
            "..",
            "__a__",
            "é",
            "e\u0301",
            "😀",
            "%",
            "a\\b",
            "'--",
        ]
        keys = [SessionKey(uid, session) for uid in odd for session in ("s", "journal")]
        await asyncio.gather(*(a.commit(key, replace(start(), turn=turn(agent=str(key)))) for key in keys))
        for key in keys:
            assert [record.agent for record in await b.turns(key, None, 9)] == [str(key)]
        for uid in odd:
            assert {item.session for item in await b.sessions(uid, None, 9)} == {"s", "journal"}


class Waking(Fixtures):
    async def woken(self, waiting: Awaitable[bool], write: Awaitable[Any]) -> bool:
        """What a wait gives beside a write that is made once it waits. Whether it was, the wait tells: the emulator
        answers a write with CANCELLED where a stream that it has to tell of it breaks in that moment."""
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        with suppress(JournalUnavailable):
            await write
        return await asyncio.wait_for(task, 10)

    async def test_news_of_this_process_and_of_another_wake_who_waits(self, a: Journal, b: Journal) -> None:
        stored, _ = await started(a)
        for seq, writer in ((2, a), (3, b)):
            write = writer.append(KEY, segment(seq, commit=f"c{seq}"))
            assert await self.woken(a.wait(KEY, seq - 1, stored.version, 30), write)
        commit = b.commit(KEY, Commit(segment(4, commit="c4")))
        assert await self.woken(a.wait(KEY, 3, stored.version, 30), commit)

    async def test_news_that_came_before_the_wait_wake_too(self, a: Journal, b: Journal) -> None:
        await b.append(KEY, segment(1, 3))
        assert await self.woken(a.wait(KEY, 2, None, 30), asyncio.sleep(0))

    async def test_another_head_wakes_who_waits(self, a: Journal, b: Journal) -> None:
        """A session that is deleted, a turn that is over: also when it came before the wait."""
        stored, _ = await started(a)
        changed = b.commit(KEY, Commit(head=replace(stored, deleted=True)))
        assert await self.woken(a.wait(KEY, 1, stored.version, 30), changed)
        assert await self.woken(a.wait(KEY, 1, stored.version, 30), asyncio.sleep(0))

    async def test_a_turn_that_is_handed_back_wakes_who_waits(self, a: Journal, b: Journal) -> None:
        begun = await a.commit(KEY, start())
        waiting = b.wait(KEY, 5, there(begun.head).version, 30)
        assert await self.woken(waiting, a.commit(KEY, handed_back(begun)))

    async def test_another_control_wakes_the_owner(self, a: Journal, b: Journal) -> None:
        """The first one, the next one, and one that came before the wait."""
        await started(a)
        assert await self.woken(a.wait_control(KEY, None, 30), b.commit(KEY, Commit(control=control("t1"))))
        known = await a.control(KEY)
        assert known
        asked = b.commit(KEY, Commit(control=control("t1", "t2", version=known.version)))
        assert await self.woken(a.wait_control(KEY, known.version, 30), asked)
        assert await self.woken(a.wait_control(KEY, known.version, 30), asyncio.sleep(0))

    async def test_who_knows_all_there_is_waits_until_the_timeout(self, a: Journal, b: Journal) -> None:
        """Of what it does not wait for, and of other sessions, nobody is told."""
        stored, held = await started(a)
        await b.commit(KEY, Commit(control=control("t1")))
        known = await a.control(KEY)
        assert known
        following, owning = a.wait(KEY, 1, stored.version, 1), a.wait_control(KEY, known.version, 1)
        waiting = asyncio.gather(following, owning)
        await b.append(SessionKey("ann", "s2"), segment(1))
        await b.renew(KEY, replace(held, commit="r"))
        assert not any(await waiting)

    async def test_a_follower_is_not_told_of_the_control_nor_an_owner_of_the_journal(
        self, a: Journal, b: Journal
    ) -> None:
        stored, _ = await started(a)
        following = asyncio.create_task(a.wait(KEY, 1, stored.version, 1))
        owning = asyncio.create_task(a.wait_control(KEY, None, 0.5))
        await b.append(KEY, segment(2, commit="c2"))
        assert await following
        assert not await owning
        assert not await self.woken(a.wait(KEY, 2, stored.version, 0.5), b.commit(KEY, Commit(control=control("t1"))))

    async def test_the_lease_is_read_alone(self, a: Journal) -> None:
        assert await a.lease(KEY) is None
        _, held = await started(a)
        found = await a.lease(KEY)
        assert found
        assert (found, found.version) == (held, held.version)

    async def test_a_store_that_answers_passes_its_check(self, a: Journal) -> None:
        await a.check()


class JournalContract(Races, Leases, Atomicity, Bytes, Reading, Privates, Sweeping, Deleting, Company, Waking):
    """All of it."""
