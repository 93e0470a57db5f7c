"""What the network and Firestore do to calls: nothing is lost, nothing is written twice, and nobody is told a lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from grpc import StatusCode

from journal.builders import KEY, NOW, control, head, lease, segment, start, takeover, turn
from journal.grpc_proxy import GrpcProxy
from legato.errors import Conflict, JournalRejected, JournalUnavailable, LeaseLost
from legato.journal import Commit, Control, Head, Journal, Lease, SessionKey
from legato.journal.firestore import FirestoreJournal

pytestmark = pytest.mark.emulator

T = TypeVar("T")
AMBIGUOUS = [StatusCode.ABORTED, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE]
PASSING = [
    *AMBIGUOUS,
    StatusCode.INTERNAL,
    StatusCode.UNKNOWN,
    StatusCode.CANCELLED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.UNAUTHENTICATED,
]
FINAL = [
    StatusCode.INVALID_ARGUMENT,
    StatusCode.PERMISSION_DENIED,
    StatusCode.UNIMPLEMENTED,
]


@pytest.fixture
async def proxy(emulator: str) -> AsyncIterator[GrpcProxy]:
    async with GrpcProxy(emulator) as proxy:
        yield proxy


@pytest.fixture
async def journal(proxy: GrpcProxy, firestore_project: str) -> AsyncIterator[FirestoreJournal]:
    """The journal behind the proxy."""
    journal = FirestoreJournal(firestore_project, "(default)", emulator=proxy.host)
    yield journal
    proxy.clear()
    await journal.close()


@pytest.fixture
async def other(emulator: str, firestore_project: str) -> AsyncIterator[FirestoreJournal]:
    """The same journal as another instance has it, past the proxy."""
    journal = FirestoreJournal(firestore_project, "(default)", emulator=emulator)
    yield journal
    await journal.close()


async def repeat(call: Callable[[], Awaitable[T]], attempts: int = 5) -> T:
    """What the engine does: the same write, byte for byte, until there is an answer."""
    for _ in range(attempts):
        try:
            return await call()
        except JournalUnavailable:
            continue
    raise AssertionError(f"no answer in {attempts} attempts")


def parts(commit: Commit) -> tuple[Head, Lease]:
    """The head and lease that a commit came back with."""
    assert commit.head
    assert commit.lease
    return commit.head, commit.lease


async def a_turn(journal: Journal, key: SessionKey) -> None:
    """One turn from its start to its end, each write repeated while its outcome is unknown."""
    stored, held = parts(await repeat(lambda: journal.commit(key, start())))
    await repeat(lambda: journal.append(key, segment(2, 3, commit="c2")))
    renewal = replace(held, commit="r", expires_at=NOW + 30_000)
    held = await repeat(lambda: journal.renew(key, renewal))
    await repeat(lambda: journal.append(key, segment(4, commit="c4", text="é" * 1_000_000)))
    end = Commit(
        segment(5, commit="c5"),
        replace(stored, seq=5, turn=None),
        replace(held, commit="c5", expires_at=0),
        turn=turn(last=5),
    )
    await repeat(lambda: journal.commit(key, end))


async def assert_whole(journal: Journal, key: SessionKey) -> None:
    """All five events once, and everything at rest."""
    records = [record.seq for stored in await journal.read(key, 0, NOW) for record in stored.records()]
    assert records == [1, 2, 3, 4, 5]
    standing = await journal.standing(key)
    assert standing.head
    assert (standing.head.seq, standing.last, standing.owned(NOW)) == (5, 5, False)
    assert (await journal.turns(key, None, 9)) == [turn(last=5)]


@pytest.mark.parametrize("code", AMBIGUOUS)
@pytest.mark.parametrize("fault", ["refuse", "lose", "lose, and the next call too"])
async def test_no_fault_at_any_call_loses_or_doubles_an_event(
    journal: FirestoreJournal, other: FirestoreJournal, proxy: GrpcProxy, code: StatusCode, fault: str
) -> None:
    await a_turn(journal, SessionKey("ann", "undisturbed"))
    for nth in range(len(proxy.calls)):
        key = SessionKey("ann", f"s{nth}")
        struck = [proxy.refuse(code, skip=nth) if fault == "refuse" else proxy.lose(code, skip=nth)]
        if "," in fault:
            struck.append(proxy.refuse(code, skip=nth))
        await a_turn(journal, key)
        assert all(one.arrived.is_set() for one in struck)
        await assert_whole(other, key)


async def test_an_append_whose_answer_is_lost_is_found_again(journal: FirestoreJournal, proxy: GrpcProxy) -> None:
    proxy.lose(StatusCode.UNAVAILABLE, "BatchWrite")
    with pytest.raises(JournalUnavailable, match="UNAVAILABLE: injected"):
        await journal.append(KEY, segment(1))
    await journal.append(KEY, segment(1))
    assert proxy.calls == ["BatchWrite", "BatchWrite", "BatchGetDocuments"]
    assert await journal.read(KEY, 0, NOW) == [segment(1)]


async def test_the_versions_of_a_commit_whose_answer_was_lost_hold(journal: FirestoreJournal, proxy: GrpcProxy) -> None:
    proxy.lose(StatusCode.UNAVAILABLE, "Commit")
    first = replace(start(), control=control("t1"))
    done = await repeat(lambda: journal.commit(KEY, first))
    standing = await journal.standing(KEY)
    for found, known in ((standing.head, done.head), (standing.lease, done.lease), (standing.control, done.control)):
        assert found == known
        assert found and known and found.version == known.version  # noqa: PT018


async def test_a_document_that_a_lost_commit_did_not_change_keeps_its_version(
    journal: FirestoreJournal, proxy: GrpcProxy
) -> None:
    stored, _ = parts(await journal.commit(KEY, start()))
    proxy.lose(StatusCode.UNAVAILABLE, "Commit")
    again = await repeat(lambda: journal.commit(KEY, Commit(segment(2, commit="c2"), head=stored)))
    assert again.head
    await journal.commit(KEY, Commit(segment(3, commit="c3"), head=replace(again.head, seq=3)))


async def test_what_came_after_a_lost_commit_is_not_overwritten(
    journal: FirestoreJournal, other: FirestoreJournal, proxy: GrpcProxy
) -> None:
    proxy.lose(StatusCode.UNAVAILABLE, "Commit")
    mine = Commit(segment(1), control=control())
    with pytest.raises(JournalUnavailable):
        await journal.commit(KEY, mine)
    stored = await other.control(KEY)
    assert stored
    await other.commit(KEY, Commit(control=control("t1", version=stored.version)))
    done = await journal.commit(KEY, mine)
    assert isinstance(done.control, Control)
    with pytest.raises(Conflict):
        await journal.commit(KEY, Commit(segment(2), control=control(version=done.control.version)))
    assert await other.control(KEY) == control("t1")


async def test_a_lost_commit_of_somebody_else_is_a_conflict(journal: FirestoreJournal, other: FirestoreJournal) -> None:
    await other.commit(KEY, start("theirs", "b"))
    with pytest.raises(Conflict):
        await journal.commit(KEY, start("mine", "a"))


async def test_a_zombie_that_wakes_up_writes_nothing(
    journal: FirestoreJournal, other: FirestoreJournal, proxy: GrpcProxy
) -> None:
    _, held = parts(await journal.commit(KEY, start()))
    late = proxy.hold("BatchWrite")
    append = asyncio.create_task(journal.append(KEY, segment(2, commit="zombie")))
    await late.arrived.wait()
    await other.commit(KEY, takeover(2, "theirs", held))
    late.release()
    with pytest.raises(LeaseLost):
        await append
    with pytest.raises(LeaseLost):
        await journal.renew(KEY, replace(held, commit="r"))
    assert [stored.commit for stored in await other.read(KEY, 0, NOW)] == ["c1", "theirs"]


async def test_an_append_that_arrives_after_its_repetition_changes_nothing(
    other: FirestoreJournal, proxy: GrpcProxy, firestore_project: str
) -> None:
    hasty = FirestoreJournal(firestore_project, "(default)", emulator=proxy.host, timeout=0.5)
    late = proxy.hold("BatchWrite")
    await repeat(lambda: hasty.append(KEY, segment(1)))
    assert late.arrived.is_set()
    late.release()
    await late.answered.wait()
    await hasty.close()
    assert await other.read(KEY, 0, NOW) == [segment(1)]


@pytest.mark.parametrize("code", PASSING)
async def test_a_failure_that_may_pass_is_unavailable_in_every_call(
    journal: FirestoreJournal, proxy: GrpcProxy, code: StatusCode
) -> None:
    for call in every_call(journal):
        proxy.refuse(code)
        with pytest.raises(JournalUnavailable, match=f"{code.name}: injected"):
            await call()


async def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown_in_every_call(
    journal: FirestoreJournal, proxy: GrpcProxy
) -> None:
    for call in every_call(journal):
        proxy.garble(None)
        with pytest.raises(JournalUnavailable):
            await call()


@pytest.mark.parametrize("code", FINAL)
async def test_a_refusal_for_good_is_rejected_and_says_why_in_every_call(
    journal: FirestoreJournal, proxy: GrpcProxy, code: StatusCode
) -> None:
    for call in every_call(journal):
        proxy.refuse(code)
        with pytest.raises(JournalRejected, match=f"{code.name}: injected"):
            await call()


def every_call(journal: Journal) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: journal.append(KEY, segment(1)),
        lambda: journal.renew(KEY, lease(version=1)),
        lambda: journal.commit(KEY, Commit(head=head())),
        lambda: journal.standing(KEY),
        lambda: journal.control(KEY),
        lambda: journal.read(KEY, 0, NOW),
        lambda: journal.turn(KEY, "t1"),
        lambda: journal.turns(KEY, None, 1),
        lambda: journal.sessions("ann", None, 1),
        lambda: journal.purge(KEY, head()),
        journal.check,
    ]


async def test_a_message_too_large_for_the_server_is_rejected_although_a_quota_is_not(
    journal: FirestoreJournal, proxy: GrpcProxy
) -> None:
    proxy.refuse(StatusCode.RESOURCE_EXHAUSTED, details="gRPC message exceeds maximum size 4194304: 4500632")
    with pytest.raises(JournalRejected, match="maximum size"):
        await journal.append(KEY, segment(1))


async def test_a_call_that_is_never_answered_is_unavailable_in_time(proxy: GrpcProxy, firestore_project: str) -> None:
    hasty = FirestoreJournal(firestore_project, "(default)", emulator=proxy.host, timeout=0.2)
    for call in every_call(hasty):
        proxy.swallow()
        with pytest.raises(JournalUnavailable, match="DEADLINE_EXCEEDED"):
            await asyncio.wait_for(call(), 5)
    await hasty.close()


async def test_a_group_that_hangs_does_not_hold_up_other_sessions(journal: FirestoreJournal, proxy: GrpcProxy) -> None:
    stuck = proxy.hold("BatchWrite")
    first = asyncio.create_task(journal.append(KEY, segment(1)))
    await stuck.arrived.wait()
    await journal.append(SessionKey("ann", "s2"), segment(1))
    assert not first.done()
    stuck.release()
    await first


async def test_a_waiter_that_is_cancelled_does_not_disturb_its_group(
    journal: FirestoreJournal, proxy: GrpcProxy
) -> None:
    held = proxy.hold("BatchWrite")
    keys = [SessionKey("ann", name) for name in ("s1", "s2", "s3")]
    appends = [asyncio.create_task(journal.append(key, segment(1))) for key in keys]
    await held.arrived.wait()
    appends[1].cancel()
    held.release()
    await asyncio.gather(appends[0], appends[2])
    assert [await journal.read(key, 0, NOW) for key in keys] == [[segment(1)]] * 3
    assert proxy.calls.count("BatchWrite") == 1


async def test_closing_writes_pending_appends_first_and_ends_what_still_reads(
    journal: FirestoreJournal, other: FirestoreJournal, proxy: GrpcProxy
) -> None:
    held = proxy.hold("RunQuery")
    reading = asyncio.create_task(journal.read(KEY, 0, NOW))
    await held.arrived.wait()
    append = asyncio.create_task(journal.append(KEY, segment(1)))
    await asyncio.sleep(0)
    await journal.close()
    await append
    with pytest.raises(JournalUnavailable, match="closed"):
        await reading
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.append(KEY, segment(2))
    assert await other.read(KEY, 0, NOW) == [segment(1)]


async def test_a_task_that_is_cancelled_while_it_reads_is_cancelled(
    journal: FirestoreJournal, proxy: GrpcProxy
) -> None:
    held = proxy.hold("RunQuery")
    reading = asyncio.create_task(journal.read(KEY, 0, NOW))
    await held.arrived.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_two_that_take_a_session_over_at_once_are_one_owner_and_one_conflict(
    journal: FirestoreJournal, other: FirestoreJournal
) -> None:
    for attempt in range(10):
        key = SessionKey("ann", f"s{attempt}")
        _, held = parts(await journal.commit(key, start()))
        outcomes = await asyncio.gather(
            journal.commit(key, takeover(2, "a2", held, "a")),
            other.commit(key, takeover(2, "b2", held, "b")),
            return_exceptions=True,
        )
        (loser,) = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
        assert isinstance(loser, Conflict)
        assert len(await journal.read(key, 2, NOW)) == 1
