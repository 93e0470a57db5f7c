"""Callers whose streams are open are asked about, in virtual time: each once in an interval, and it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from legato.callers import Callers
from legato.principal import Principal
from simulation.loop import VirtualLoop, new_loop

INTERVAL = 30.0
ANN, BOB = Principal("ann", 5), Principal("bob", 5)


class Checked:
    """A verifier; `asked` is who was asked about and when, in seconds; who is in `fallen` does not stand."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.asked: list[tuple[str, int]] = []
        self.fallen: set[str] = set()
        self.answers: Callable[[], Awaitable[object]] = _at_once

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        raise NotImplementedError

    async def stands(self, principal: Principal) -> bool:
        self.asked.append((principal.uid, round(self.loop.time())))
        await self.answers()
        return principal.uid not in self.fallen


async def _at_once() -> None:
    await asyncio.sleep(0)


def _failing(failure: BaseException) -> Callable[[], Awaitable[object]]:
    async def fails() -> None:
        raise failure

    return fails


class Opened:
    """A stream; `closed` is when it was closed, in seconds."""

    def __init__(self, callers: Callers, caller: Principal) -> None:
        self.callers, self.caller = callers, caller
        self.closed: float | None = None
        callers.enter(caller, self.revoke)

    def revoke(self) -> None:
        self.closed = asyncio.get_running_loop().time()
        self.leave()

    def leave(self) -> None:
        self.callers.leave(self.caller, self.revoke)


def played(play: Callable[[Checked, Callers], Awaitable[None]], interval: float = INTERVAL) -> Checked:
    loop = new_loop()
    checked = Checked(loop)

    async def plays() -> None:
        callers = Callers(checked, interval)
        await play(checked, callers)
        callers.close()

    loop.run(plays())
    return checked


def test_a_caller_is_asked_about_once_an_interval_however_many_streams_it_has() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        streams = [Opened(callers, Principal("ann", token)) for token in range(5)]
        await asyncio.sleep(65)
        assert [stream.closed for stream in streams] == [None] * 5

    assert played(play).asked == [("ann", 0), ("ann", 30), ("ann", 60)]


def test_nobody_is_asked_about_who_has_no_stream_any_more() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        ann, _ = Opened(callers, ANN), Opened(callers, BOB)
        await asyncio.sleep(10)
        ann.leave()
        await asyncio.sleep(55)

    assert played(play).asked == [("ann", 0), ("bob", 0), ("bob", 30), ("bob", 60)]


def test_streams_opened_one_after_another_are_asked_about_once_an_interval() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        for _ in range(13):
            opened = Opened(callers, ANN)
            await asyncio.sleep(2)
            opened.leave()
            await asyncio.sleep(3)

    assert [at for _, at in played(play).asked] == [0, 30, 60]


def test_an_interval_of_nothing_asks_about_nobody() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        opened = Opened(callers, ANN)
        await asyncio.sleep(1000)
        opened.leave()

    assert played(play, interval=0).asked == []


def test_a_caller_that_has_fallen_loses_all_its_streams_within_the_interval_and_nobody_else_does() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        lost, kept = [Opened(callers, ANN) for _ in range(3)], Opened(callers, BOB)
        await asyncio.sleep(10)
        checked.fallen.add("ann")
        await asyncio.sleep(INTERVAL)
        assert all(stream.closed and stream.closed < 31 for stream in lost)
        assert kept.closed is None

    played(play)


def test_a_caller_that_has_fallen_opens_nothing_until_it_stands_again() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        checked.fallen.add("ann")
        Opened(callers, ANN)
        await asyncio.sleep(5)
        assert Opened(callers, ANN).closed == asyncio.get_running_loop().time()
        checked.fallen.clear()
        await asyncio.sleep(INTERVAL)
        again = Opened(callers, ANN)
        await asyncio.sleep(5)
        assert again.closed is None

    assert [at for _, at in played(play).asked] == [0, 35]


@pytest.mark.parametrize("failure", [ConnectionError("nobody there"), asyncio.CancelledError(), SystemExit(1)])
def test_a_check_that_fails_keeps_the_streams(failure: BaseException) -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        checked.answers = _failing(failure)
        opened = Opened(callers, ANN)
        await asyncio.sleep(65)
        assert opened.closed is None

    assert len(played(play).asked) == 3


def test_what_a_failing_check_says_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        checked.answers = _failing(ConnectionError("GET /users?token=sesame"))
        Opened(callers, ANN)
        await asyncio.sleep(5)

    played(play)
    assert "ConnectionError" in caplog.text
    assert "sesame" not in caplog.text


def test_a_check_that_never_answers_keeps_the_streams_and_is_asked_again() -> None:
    async def play(checked: Checked, callers: Callers) -> None:
        checked.answers = asyncio.Event().wait
        opened = Opened(callers, ANN)
        await asyncio.sleep(65)
        assert opened.closed is None

    assert [at for _, at in played(play).asked] == [0, 40]
