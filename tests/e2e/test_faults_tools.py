"""What a tool did it did once, whatever becomes of the instance that ran it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from conftest import Place
from e2e.conftest import journal_at, two
from e2e.duo import HERE, Duo, Where
from e2e.following import AGENTS, eventually, journaled
from harness import Answer
from legato.events import Record

ENV = {**AGENTS, "LEGATO_AGENT": "agents:scripted", "LEGATO_LEASE": "1"}


@pytest.fixture(scope="module", params=HERE)
def brief(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    """Two instances that keep a session for a second after they stopped renewing."""
    where: Where = request.param
    directory = tmp_path_factory.mktemp(f"tools-{where.store}")
    with two(Place(journal_at(where, directory, request), where.face, directory), ENV) as servers:
        yield servers


def entries(duo: Duo, session: str) -> list[str]:
    """What the tools of that session left in the ledger."""
    return [line for line in duo.place.ledger.read_text().splitlines() if f"{session}/" in line]


def kinds(told: list[str], *left_out: str) -> list[str]:
    return [kind for data in told if (kind := Record.of(data).type) not in left_out]


async def test_a_tool_three_times_as_long_as_the_lease_runs_once_where_it_began(brief: Duo, session: str) -> None:
    """While somebody who would take over follows it on the other instance."""
    async with brief.a.caller().start(session, '/tool transfer {"amount": 1, "seconds": 3}', "t") as first:
        await first.until("tool.call")
        follower = await brief.rest(brief.b, session, first.cursor, turn="t")
        told = await first.rest()
    assert kinds(journaled(told)) == ["turn.started", "tool.call", "tool.result", "turn.completed"]
    assert journaled(follower.messages) == journaled(told)[2:]
    assert len(entries(brief, session)) == 1


async def frozen(brief: Duo, session: str) -> tuple[list[Answer], list[str]]:
    """The streams of an owner that froze while its tool ran, until they ended; and the turn as it ended elsewhere."""
    script = '/say 3\n/tool slow {"seconds": 2}\n/tool transfer {"amount": 1}\n/say 3'
    async with (
        brief.a.caller().start(session, script, "t") as starting,
        brief.a.caller().events(session, turn="t", **{"from": "start"}) as following,
    ):
        async with brief.b.caller().events(session, turn="t", **{"from": "start"}) as elsewhere:
            await asyncio.gather(*(stream.until("tool.progress") for stream in (starting, following, elsewhere)))
            brief.a.sigstop()
            try:
                told = journaled(await elsewhere.until("turn.completed"))
            finally:
                brief.a.sigcont()
        await asyncio.gather(starting.rest(), following.rest())
    return [starting, following], told


async def test_an_owner_that_thaws_under_its_running_tool_ends_its_streams_and_adds_nothing(
    brief: Duo, session: str
) -> None:
    """The tool may run again and did; what it comes to at the old owner is nobody's business any more."""
    streams, told = await frozen(brief, session)
    for stream in streams:
        assert (stream.messages[-1].event, '"reason":"lease"' in stream.messages[-1].data) == ("stream.closing", True)
        assert told[: len(journaled(stream.messages))] == journaled(stream.messages)
    assert await brief.session_events(session) == told
    assert kinds(told, "text.delta", "tool.progress") == [
        "turn.started", "tool.call", "turn.resumed", "tool.result", "tool.call", "tool.result", "turn.completed",
    ]  # fmt: skip
    assert len(entries(brief, session)) == 1


async def test_of_three_calls_at_once_whose_owner_is_killed_after_one_result_the_others_are_settled_by_their_effect(
    brief: Duo, session: str
) -> None:
    """The one that reads is made again, the payment is found to be made, and the call with a result is left alone."""
    script = '/parallel glance {} watch {"seconds": 1.5} pay {"seconds": 1.5}\n/say 3'
    async with brief.a.caller().start(session, script, "t") as first:
        await first.until("tool.result")
        await eventually(lambda: entered(brief, session, 3))
        brief.a.kill9()
        follower = await brief.rest(brief.b, session, first.cursor, turn="t")
    await brief.a.start()
    told = await brief.replay(session, "t")
    results = [Record.of(data).fields() for data in told if Record.of(data).type == "tool.result"]
    assert {result["call"]: result["content"] for result in results} == {"1-1": "seen", "1-2": "seen", "1-3": "paid"}
    assert (len(results), kinds(told)[-1], follower.ended) == (3, "turn.completed", True)
    made = [line.split()[0] for line in entries(brief, session)]
    assert sorted(made) == ["glance", "pay", "watch", "watch"]


async def entered(duo: Duo, session: str, count: int) -> bool:
    return len(entries(duo, session)) == count
