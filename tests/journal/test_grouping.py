"""Writes of many sessions share a group, and no waiter hears of another's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from legato.errors import JournalRejected, JournalUnavailable
from legato.journal.grouping import Grouping, Written


class Store:
    """Takes groups of numbers; answers each but `mute` tenfold once `open` is set. Nobody may write 13."""

    def __init__(self, *, in_flight: int = 1, max_writes: int = 500, spacing: float = 0) -> None:
        self.groups: list[list[int]] = []
        self.open = asyncio.Event()
        self.started = asyncio.Semaphore(0)
        self.running = self.most = 0
        self.fault: Exception | None = None
        self.mute: int | None = None
        self.writes = Grouping(self.send, in_flight=in_flight, max_writes=max_writes, max_bytes=100, spacing=spacing)

    async def send(self, group: list[int]) -> Sequence[Written]:
        self.groups.append(group)
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.release()
        await self.open.wait()
        self.running -= 1
        if self.fault:
            raise self.fault
        if 13 in group:
            raise JournalRejected("13 is bad")
        answered = [number for number in group if number != self.mute]
        return [JournalUnavailable("7 is late") if number == 7 else number * 10 for number in answered]

    def put(self, number: int, *, size: int = 1, name: str = "") -> asyncio.Task[int]:
        return asyncio.create_task(self.writes.put(name or str(number), size, number))

    async def put_all(self, *numbers: int) -> list[int | BaseException]:
        return await asyncio.gather(*map(self.put, numbers), return_exceptions=True)


async def settled(tasks: int = 5) -> None:
    """Lets everything that is ready run."""
    for _ in range(tasks):
        await asyncio.sleep(0)


async def test_the_first_write_goes_at_once_and_later_ones_together() -> None:
    store = Store()
    first = store.put(1)
    await settled()
    rest = [store.put(number) for number in (2, 3, 4)]
    await settled()
    assert store.groups == [[1]]
    store.open.set()
    assert await asyncio.gather(first, *rest) == [10, 20, 30, 40]
    assert store.groups == [[1], [2, 3, 4]]


async def test_writes_of_one_turn_of_the_loop_share_a_group() -> None:
    store = Store()
    store.open.set()
    assert await store.put_all(1, 2, 3) == [10, 20, 30]
    assert store.groups == [[1, 2, 3]]


async def test_a_stuck_group_does_not_hold_up_the_next_ones_but_only_so_many_are_in_flight() -> None:
    store = Store(in_flight=2, max_writes=1)
    waiting = [store.put(number) for number in range(1, 6)]
    await store.started.acquire()
    await store.started.acquire()
    store.open.set()
    assert await asyncio.gather(*waiting) == [10, 20, 30, 40, 50]
    assert store.most == 2


async def test_what_arrives_soon_after_a_group_s_start_goes_together_although_the_group_has_ended() -> None:
    store = Store(in_flight=2, spacing=0.2)
    store.open.set()
    await store.put(1)
    second = store.put(2)
    await settled()
    third = store.put(3)
    assert [await second, await third] == [20, 30]
    assert store.groups == [[1], [2, 3]]


async def test_a_group_stays_within_its_bytes() -> None:
    store = Store()
    store.open.set()
    await asyncio.gather(store.put(1, size=60), store.put(2, size=40), store.put(3, size=1), store.put(4, size=500))
    assert store.groups == [[1, 2], [3], [4]]


async def test_a_document_is_written_once_in_a_group() -> None:
    store = Store()
    store.open.set()
    await asyncio.gather(store.put(1, name="x"), store.put(2, name="y"), store.put(3, name="x"))
    assert store.groups == [[1, 2], [3]]


async def test_each_write_has_its_own_outcome() -> None:
    store = Store()
    store.open.set()
    one, late, two = await store.put_all(1, 7, 2)
    assert (one, two) == (10, 20)
    assert isinstance(late, JournalUnavailable)


async def test_one_bad_write_harms_nobody_else() -> None:
    store = Store()
    store.open.set()
    outcomes = await store.put_all(*range(10, 20))
    bad = outcomes.pop(3)
    assert isinstance(bad, JournalRejected)
    assert outcomes == [100, 110, 120, 140, 150, 160, 170, 180, 190]


async def test_a_group_without_an_answer_is_unavailable_to_each_of_its_waiters() -> None:
    store = Store()
    store.open.set()
    store.fault = JournalUnavailable("gone")
    outcomes = await store.put_all(1, 2)
    assert [str(outcome) for outcome in outcomes] == ["gone", "gone"]
    assert outcomes[0] is not outcomes[1]


class Peculiar(Exception):
    """Cannot be made from its own arguments."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize("fault", [Peculiar(1, 2), KeyError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "bad")])
async def test_a_fault_that_nobody_foresaw_is_told_to_each_waiter_and_the_next_group_goes_on(fault: Exception) -> None:
    store = Store()
    store.open.set()
    store.fault = fault
    async with asyncio.timeout(10):
        outcomes = await store.put_all(1, 2)
        store.fault = None
        assert await store.put(3) == 30
    assert all(isinstance(outcome, JournalUnavailable) and str(fault) in str(outcome) for outcome in outcomes)
    assert outcomes[0] is not outcomes[1]


async def test_a_store_that_answers_too_few_leaves_nobody_waiting() -> None:
    store = Store()
    store.open.set()
    store.mute = 2
    async with asyncio.timeout(10):
        one, two = await store.put_all(1, 2)
    assert one == 10
    assert isinstance(two, JournalUnavailable)


async def test_a_waiter_that_is_cancelled_disturbs_nobody() -> None:
    store = Store()
    sent, with_it = store.put(1), store.put(2)
    await settled()
    queued, behind = store.put(3), store.put(4)
    await settled()
    sent.cancel()
    queued.cancel()
    store.open.set()
    assert [await with_it, await behind] == [20, 40]
    assert store.groups == [[1, 2], [4]]


async def test_draining_waits_for_all_that_was_put() -> None:
    store = Store()
    waiting = [store.put(number) for number in (1, 2)]
    await settled(1)
    draining = asyncio.create_task(store.writes.drain())
    await settled()
    assert not draining.done()
    store.open.set()
    await draining
    assert [task.result() for task in waiting] == [10, 20]


async def test_an_idle_committer_starts_again_at_once() -> None:
    store = Store()
    store.open.set()
    for number in range(3):
        assert await store.writes.put("x", 1, number) == number * 10
    assert store.groups == [[0], [1], [2]]
