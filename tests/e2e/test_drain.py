"""SIGTERM to a serving instance: nobody is cut off without a word, and what can go on goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from conftest import Place
from e2e.outages import locked
from harness import Answer, Server
from legato import app
from legato.journal import SessionKey, Standing
from legato.journal.sqlite import SqliteJournal

LONG = "/say 4000 20"
GONE = 8
"""Seconds after SIGTERM; the platform kills after 10."""


@pytest.fixture
def journal_url(request: pytest.FixtureRequest) -> str:
    """SQLite, but for the tests of what depends on the store."""
    return str(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url"))


on_both_stores = pytest.mark.parametrize(
    "journal_url", ["sqlite", pytest.param("firestore", marks=pytest.mark.emulator)], indirect=True
)


def last(answer: Answer) -> tuple[str, str]:
    """The last frame's type and what it gives as its reason."""
    message = answer.messages[-1]
    return message.event, json.loads(message.data).get("reason", "")


async def rests(answers: Sequence[Answer]) -> None:
    await asyncio.gather(*(answer.rest() for answer in answers))


async def standing(place: Place, session: str = "s") -> Standing:
    journal = SqliteJournal(Path(place.journal.removeprefix("sqlite:///")), app.now)
    try:
        return await journal.standing(SessionKey("ann", session))
    finally:
        await journal.close()


async def test_fifty_followers_are_told_and_the_process_is_gone_within_eight_seconds(place: Place) -> None:
    async with place.server() as server, AsyncExitStack() as stack:
        caller = server.caller()
        await caller.begin("idle", "/say 1", "t")
        opened = [caller.start("s", LONG, "t"), *(caller.events("s", turn="t", **{"from": "start"}) for _ in range(24))]
        opened += [caller.events("idle") for _ in range(25)]
        answers = [await stack.enter_async_context(opening) for opening in opened]
        await asyncio.gather(*(answer.next() for answer in answers))
        seconds, _ = await asyncio.gather(server.terminate(), rests(answers))
        print(f"gone after {seconds:.2f} s")
        assert seconds < GONE
        assert {last(answer) for answer in answers} == {("stream.closing", "draining")}
        assert not any(answer.broken for answer in answers)


@on_both_stores
async def test_another_instance_goes_on_with_the_turn_within_a_second(place: Place) -> None:
    async with place.server("a", LEGATO_DRAIN="0.3") as owner, place.server("b") as other:
        async with owner.caller().start("s", LONG, "t") as first:
            await first.until("text.delta")
            async with other.caller().events("s", turn="t", **{"from": "start"}) as follower:
                await follower.until("text.delta")
                ending = asyncio.create_task(owner.terminate())
                await first.until("stream.closing")
                closed = time.monotonic()
                await follower.until("turn.resumed")
                seconds = time.monotonic() - closed
        print(f"taken over {seconds:.2f} s after the last frame; gone after {await ending:.2f} s")
        assert seconds < 1


async def test_a_turn_with_two_seconds_left_ends_where_it_runs(place: Place) -> None:
    async with place.server() as server, server.caller().start("s", "/say 60 20", "t") as answer:
        await answer.until(lambda message: '"w20 "' in message.data)
        seconds, _ = await asyncio.gather(server.terminate(), answer.rest())
        assert answer.messages[-1].event == "turn.completed"
        assert seconds < GONE


async def test_a_running_once_tool_is_recorded_before_the_lease_is_released(place: Place) -> None:
    script = '/tool transfer {"amount": 1, "seconds": 1.6}\n' + LONG
    async with place.server(LEGATO_DRAIN="1") as server, server.caller().start("s", script, "t") as answer:
        await answer.until("tool.call")
        await asyncio.gather(server.terminate(), answer.rest())
        assert last(answer) == ("stream.closing", "draining")
    assert len(place.ledger.read_text().splitlines()) == 1
    stands = await standing(place)
    assert stands.lease
    assert stands.last >= 3
    assert stands.lease.expires_at == 0


async def test_the_lease_of_a_once_tool_that_outlasts_the_process_is_not_released(place: Place) -> None:
    script = '/tool transfer {"amount": 1, "seconds": 4.5}'
    async with place.server(LEGATO_DRAIN="0.3") as server, server.caller().start("s", script, "t") as answer:
        await answer.until("tool.call")
        seconds, _ = await asyncio.gather(server.terminate(), answer.rest())
        assert last(answer) == ("stream.closing", "draining")
        assert seconds < 3.5
    lease = (await standing(place)).lease
    assert lease
    assert lease.expires_at > app.now()


async def test_a_draining_instance_says_so_and_takes_nothing_new(place: Place) -> None:
    async with place.server() as server, server.caller().start("s", "/say 60 20", "t") as answer:
        await answer.until("text.delta")
        ending = asyncio.create_task(server.terminate())
        refused = await refusal(server)
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert int(refused.headers["Retry-After"]) > 0
        health = await server.caller().request("GET", "/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        await answer.rest()
        await ending
    assert (await standing(place, "new")).head is None


async def refusal(server: Server) -> httpx.Response:
    """The answer to a new turn once the signal has arrived."""
    async with asyncio.timeout(2):
        while (await server.caller().request("GET", "/health")).status_code == 200:
            pass
    return await server.caller().begin("new", "/say 1", "t")


async def test_a_journal_that_does_not_answer_holds_up_neither_the_streams_nor_the_end(place: Place) -> None:
    async with place.server(LEGATO_DRAIN="1") as server, server.caller().start("s", LONG, "t") as answer:
        await answer.until("text.delta")
        with locked(Path(place.journal.removeprefix("sqlite:///"))):
            seconds, _ = await asyncio.gather(server.terminate(), answer.rest())
        print(f"gone after {seconds:.2f} s")
        assert last(answer) == ("stream.closing", "draining")
        assert seconds < GONE - 4


async def test_a_second_signal_ends_a_worker_at_once(place: Place) -> None:
    async with place.server() as server, server.caller().start("s", LONG, "t") as answer:
        await answer.until("text.delta")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGTERM)
        await refusal(server)
        began = time.monotonic()
        os.kill(worker, signal.SIGTERM)
        await answer.rest()
        assert answer.broken
        assert time.monotonic() - began < 1


class Unasked(Server):
    """A server that has not answered a request yet."""

    async def _healthy(self) -> None:
        async with asyncio.timeout(20):
            while not self.workers() or not _serves(self.workers()[0]):  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.05)


def _serves(pid: int) -> bool:
    """The worker has put handlers of its own in place of the master's."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return not caught >> (signal.SIGCHLD - 1) & 1 and bool(caught >> (signal.SIGTERM - 1) & 1)


async def test_a_signal_before_any_request_ends_the_process(place: Place) -> None:
    async with Unasked(place.journal, place.directory / "log", place.face) as server:
        assert await server.terminate() < 5
        assert "Traceback" not in server.output()
