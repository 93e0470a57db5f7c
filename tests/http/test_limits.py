"""What one caller may have of an instance, through either face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from harness import Caller, Face, Server
from http_raw import refused, send

POLL = {"Accept": "application/json"}


@pytest.fixture
async def limited(request: pytest.FixtureRequest, face: Face, tmp_path: Path) -> AsyncIterator[Caller]:
    """A caller of an instance that has one limit."""
    name, most = request.param
    env = {f"LEGATO_{name}": str(most), "LEGATO_PING": "0.2"}
    async with Server(f"sqlite:///{tmp_path}/journal.sqlite", tmp_path / "log", face, env) as server:
        yield server.caller()


def limit(name: str, most: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("limited", [(name, most)], indirect=True, ids=[name.lower()])


def later(answer: httpx.Response, code: str) -> int:
    refused(answer, 429, code)
    return int(answer.headers["retry-after"])


@limit("TURNS_ACTIVE", 2)
async def test_a_caller_with_as_many_turns_as_it_may_begins_no_other_until_one_ends(limited: Caller) -> None:
    async with limited.start("s1", "/sleep 30", "t1") as running:
        await running.until("turn.started")
        await limited.begin("s2", "/sleep 30", "t1")
        assert later(await limited.begin("s3", "/say 1", "t1"), "too_many_turns") >= 1
        assert (await limited.snapshot("s3")).status_code == 404
        assert (await Caller(limited.url, "bob").begin("s3", "/say 1", "t1")).status_code == 202
        await limited.cancel("s1", "t1")
        await running.rest()
    assert (await limited.begin("s3", "/say 1", "t1")).status_code == 202
    await limited.cancel("s2", "t1")


@limit("TURNS_ACTIVE", 1)
async def test_a_turn_that_was_begun_is_found_whatever_its_caller_has(limited: Caller) -> None:
    async with limited.start("s1", "/say 1", "t1") as told:
        await told.rest()
    await limited.begin("s2", "/sleep 30", "t1")
    later(await limited.begin("s1", "/say 1", "t2"), "too_many_turns")
    async with limited.start("s1", "/say 1", "t1") as again:
        assert [message.data for message in await again.rest()] == [message.data for message in told.messages]
    replaced = await limited.begin("s2", "/say 1", "t2", if_active="interrupt")
    assert replaced.status_code == 202


@limit("TURNS_ACTIVE", 3)
async def test_of_turns_that_are_begun_at_once_no_more_begin_than_may_run(limited: Caller) -> None:
    answers = await asyncio.gather(*(limited.begin(f"s{n}", "/sleep 30", "t1") for n in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 17


@limit("TURNS_PER_MINUTE", 3)
async def test_a_caller_that_begins_turns_too_fast_is_told_when_it_may(limited: Caller) -> None:
    for turn in ("t1", "t2", "t3"):
        async with limited.start("s", "/say 1", turn) as answer:
            await answer.rest()
        assert (await limited.begin("s", "/say 1", turn)).status_code == 202
    assert 1 <= later(await limited.begin("s", "/say 1", "t4"), "turns_too_fast") <= 20


@limit("STREAMS_OPEN", 2)
async def test_a_stream_beyond_those_that_a_caller_may_have_is_refused_until_one_ends(limited: Caller) -> None:
    await limited.begin("s", "/sleep 30", "t1")
    async with AsyncExitStack() as stack:
        open_ = [await stack.enter_async_context(limited.events("s")) for _ in range(2)]
        for answer in open_:
            await answer.next()
        later(await send(limited, "GET", "/v1/sessions/s/events"), "too_many_streams")
        later(await send(limited, "GET", "/v1/sessions/s/events?wait=1", headers=POLL), "too_many_streams")
        assert (await send(limited, "GET", "/v1/sessions/s/events?wait=0", headers=POLL)).status_code == 200
        await limited.cancel("s", "t1")
        assert (await limited.begin("s2", "/say 1", "t1")).status_code == 202
    await opens(limited)


@limit("STREAMS_OPEN", 1)
async def test_a_long_poll_counts_as_a_stream_while_it_waits(limited: Caller) -> None:
    async with limited.start("s", "/say 1", "t1") as told:
        await told.rest()
    waiting = asyncio.create_task(polled(limited, f"after={told.cursor}&wait=60", 200))
    async with asyncio.timeout(20):
        await polled(limited, "wait=0.01", 429)
        await limited.begin("s", "/say 1", "t2")
        await waiting
    await opens(limited)


@limit("STREAMS_OPEN", 1)
async def test_a_stream_whose_client_is_gone_counts_no_more(limited: Caller) -> None:
    await limited.begin("s", "/say 3000 100", "t1")
    for _ in range(20):
        async with limited.events("s") as answer:
            if answer.status == 200:
                await answer.next()
    await opens(limited)
    await limited.cancel("s", "t1")


async def polled(caller: Caller, query: str, status: int) -> None:
    """Asks until that is the answer."""
    while (await send(caller, "GET", f"/v1/sessions/s/events?{query}", headers=POLL)).status_code != status:
        pass


async def opens(caller: Caller) -> None:
    """What has ended is left soon: a client that is gone is noticed with the next frame."""
    async with asyncio.timeout(20):
        while True:
            async with caller.events("s") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)
