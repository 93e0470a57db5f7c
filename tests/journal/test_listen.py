"""Wake-ups by Listen over the emulator: prompt, behind whatever happens to the stream, and nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest
from grpc import StatusCode

from harness import Port
from journal.builders import KEY, control, segment, start
from journal.grpc_proxy import GrpcProxy
from legato.journal import Commit, SessionKey
from legato.journal.firestore import FirestoreJournal

pytestmark = pytest.mark.emulator

NEVER = 3600.0
"""A tick that does not come: who is woken is woken by Listen."""
OFTEN = 0.1


class Opened(Protocol):
    def __call__(self, tick: float) -> FirestoreJournal: ...


@pytest.fixture
async def proxy(emulator: str) -> AsyncIterator[GrpcProxy]:
    async with GrpcProxy(emulator) as proxy:
        yield proxy


@pytest.fixture
async def opened(proxy: GrpcProxy, firestore_project: str) -> AsyncIterator[Opened]:
    """Opens journals behind the proxy."""
    journals: list[FirestoreJournal] = []

    def open_one(tick: float) -> FirestoreJournal:
        journals.append(FirestoreJournal(firestore_project, "(default)", emulator=proxy.host, tick=tick))
        return journals[-1]

    yield open_one
    proxy.clear()
    for journal in journals:
        await journal.close()


@pytest.fixture
async def other(emulator: str, firestore_project: str) -> AsyncIterator[FirestoreJournal]:
    """The same journal as another instance has it, past the proxy."""
    journal = FirestoreJournal(firestore_project, "(default)", emulator=emulator)
    yield journal
    await journal.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """For what nothing tells of: looks until it is so."""
    async with asyncio.timeout(15):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def in_order(journal: FirestoreJournal) -> bool:
    targets = [target for target, _ in journal._watch._targets.values()]
    return bool(targets) and all(target.current for target in targets)


async def watching(journal: FirestoreJournal, key: SessionKey = KEY, after: int = 1) -> asyncio.Task[bool]:
    """One who waits beyond an event, once Listen is in order."""
    task = asyncio.create_task(journal.wait(key, after, 1 << 61, 30))
    await asyncio.sleep(0)
    await eventually(lambda: in_order(journal))
    return task


async def test_a_stream_that_is_cut_is_opened_again_and_what_came_meanwhile_is_told(
    opened: Opened, proxy: GrpcProxy, other: FirestoreJournal
) -> None:
    await other.append(KEY, segment(1))
    journal = opened(NEVER)
    waiting = await watching(journal)
    proxy.refuse(StatusCode.UNAVAILABLE, "Listen")
    assert proxy.cut("Listen") == 1
    await other.append(KEY, segment(2))
    assert await asyncio.wait_for(waiting, 10)
    assert proxy.calls.count("Listen") == 3


async def test_whoever_waits_is_woken_once_after_a_reconnect(opened: Opened, proxy: GrpcProxy) -> None:
    """Also where nothing has come that it would be told of: it looks for itself."""
    journal = opened(NEVER)
    following, owning = await watching(journal), asyncio.create_task(journal.wait_control(KEY, 1 << 61, 30))
    await asyncio.sleep(0)
    proxy.cut("Listen")
    assert await asyncio.wait_for(following, 10)
    assert await asyncio.wait_for(owning, 10)
    assert not await journal.wait(KEY, 1, 1 << 61, 0.5)


@pytest.mark.parametrize("code", [StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED, StatusCode.INTERNAL])
async def test_a_stream_that_is_refused_is_tried_until_it_opens(
    opened: Opened, proxy: GrpcProxy, other: FirestoreJournal, code: StatusCode
) -> None:
    for _ in range(3):
        proxy.refuse(code, "Listen")
    waiting = await watching(opened(NEVER))
    await other.append(KEY, segment(2))
    assert await asyncio.wait_for(waiting, 10)
    assert proxy.calls.count("Listen") == 4


async def test_a_stream_that_says_what_is_no_message_is_opened_again(
    opened: Opened, proxy: GrpcProxy, other: FirestoreJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """The emulator does now and then."""
    proxy.garble("Listen")
    waiting = await watching(opened(NEVER))
    await other.append(KEY, segment(2))
    assert await asyncio.wait_for(waiting, 10)
    assert "cannot be read" in caplog.text
    assert "not understood" not in caplog.text


async def test_while_listen_says_nothing_who_waits_is_woken_by_the_clock(opened: Opened, proxy: GrpcProxy) -> None:
    """Followers and owners, from the first moment on."""
    proxy.mute("Listen")
    journal = opened(1)
    for _ in range(2):
        following, owning = journal.wait(KEY, 1, None, 30), journal.wait_control(KEY, None, 30)
        assert all(await asyncio.wait_for(asyncio.gather(following, owning), 5))


async def test_also_while_listen_is_in_order_who_waits_is_woken_now_and_then(opened: Opened) -> None:
    """A wake-up is never the truth: what Listen has not told is found nevertheless."""
    journal = opened(OFTEN)
    staying = asyncio.create_task(stay(journal))
    await eventually(lambda: in_order(journal))
    assert await asyncio.wait_for(journal.wait(KEY, 1, 1 << 61, 30), 10)
    staying.cancel()


async def stay(journal: FirestoreJournal) -> None:
    while True:
        await journal.wait(KEY, 1, 1 << 61, 30)


@pytest.mark.parametrize("before", [True, False])
async def test_a_stream_that_falls_silent_is_given_up_and_another_one_tells(
    opened: Opened, proxy: GrpcProxy, before: bool
) -> None:
    """From its first message on, or in the middle of its life."""
    if before:
        proxy.mute("Listen")
    journal = opened(OFTEN)
    staying = asyncio.create_task(stay(journal))
    if not before:
        await eventually(lambda: in_order(journal))
        proxy.mute("Listen")
    await eventually(lambda: proxy.calls.count("Listen") > 2)
    proxy.clear()
    await eventually(lambda: in_order(journal))
    staying.cancel()


async def test_a_silent_stream_that_answers_its_probe_is_kept(opened: Opened, proxy: GrpcProxy) -> None:
    journal = opened(OFTEN)
    waiting = await watching(journal)
    (stream,) = journal._watch._streams
    probed = next(stream._numbers) + 3
    await eventually(lambda: next(stream._numbers) > probed)
    waiting.cancel()
    assert proxy.calls.count("Listen") == 1


async def test_a_thousand_waits_leave_no_target_no_task_and_no_stream(emulator: str, firestore_project: str) -> None:
    """Of twenty sessions, each followed and owned, whose waits are dropped."""
    journal, base = FirestoreJournal(firestore_project, "(default)", emulator=emulator, tick=OFTEN), asyncio.all_tasks()
    keys = [SessionKey("ann", f"s{n}") for n in range(20)]
    for _ in range(25):
        following = [asyncio.create_task(journal.wait(key, 0, None, 30)) for key in keys]
        waits = following + [asyncio.create_task(journal.wait_control(key, None, 30)) for key in keys]
        await asyncio.sleep(0.01)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
    assert len(journal._watch._targets) == 40
    await eventually(lambda: not journal._watch._targets and asyncio.all_tasks() <= base)
    assert journal._watch._streams == []
    await journal.close()


async def test_a_stream_ends_with_its_last_target(opened: Opened, proxy: GrpcProxy) -> None:
    journal = opened(OFTEN)
    waiting = await watching(journal)
    assert proxy.running("Listen") == 1
    waiting.cancel()
    await eventually(lambda: not proxy.running("Listen"))


async def test_a_target_outlives_the_time_between_two_waits(opened: Opened, proxy: GrpcProxy) -> None:
    """It is added once, however often somebody waits."""
    journal = opened(NEVER)
    waiting = await watching(journal, after=0)
    waiting.cancel()
    (stream,) = journal._watch._streams
    asked = next(stream._numbers)
    for _ in range(20):
        await journal.wait(KEY, 0, 1 << 61, 0.01)
    assert next(stream._numbers) == asked + 1


async def test_an_owner_pays_for_no_segment(opened: Opened, other: FirestoreJournal) -> None:
    """Only who follows asks for the newest one."""
    journal = opened(NEVER)
    owning = asyncio.create_task(journal.wait_control(KEY, None, 30))
    await asyncio.sleep(0)
    assert [aim.part for aim in journal._watch._targets] == ["documents"]
    await other.commit(KEY, Commit(control=control("t1")))
    assert await asyncio.wait_for(owning, 10)


async def test_closing_ends_waits_and_leaves_nothing(other: FirestoreJournal) -> None:
    await other.commit(KEY, start())
    base = asyncio.all_tasks()
    waiting = await watching(other)
    await other.close()
    await asyncio.wait_for(waiting, 5)
    await eventually(lambda: asyncio.all_tasks() <= base)


async def test_streams_that_failed_leave_no_task() -> None:
    """Nobody listens at this address."""
    base, port = asyncio.all_tasks(), Port()
    journal = FirestoreJournal("demo-nowhere", "(default)", emulator=f"127.0.0.1:{port.number}", tick=NEVER)
    waiting = asyncio.create_task(journal.wait(KEY, 0, None, 30))
    await asyncio.sleep(0)
    (stream,) = journal._watch._streams
    await eventually(lambda: stream._failures > 2)
    await journal.close()
    await waiting
    port.release()
    await eventually(lambda: asyncio.all_tasks() <= base)
