"""The owner of a turn dies, freezes or blocks; the journal and its clients lose nothing that was committed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from statistics import median

import httpx
import pytest

from conftest import Place
from e2e.following import AGENTS, at, eventually, journaled, reduced
from harness import Server
from legato.events import SHOWN_EARLY, TERMINAL, Record
from legato.settings import Settings
from legato.sse import Message
from legato.turn import snapshot

SAID = "".join(f"w{number} " for number in range(1, 41))
SCRIPT = '/say 20 40\n/tool transfer {"amount": 1, "seconds": 0.2}\n/say 20 40'
LASTS = 1.4
LEASE = {"LEGATO_LEASE": "1.5"}
ROUNDS, TURNS = 2, 20
FLUSH_MS = 1000 * Settings.model_fields["flush"].default
COMMIT_MS = 200
BEHIND_MS = FLUSH_MS + 1000
"""How far the journal may be behind what is shown: one flush, and one commit on a busy machine."""


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> str:
    """What happens to a turn does not depend on the face; the suites of the faces hold that."""
    return str(request.param)


async def resumed(session: str, owner: Server, other: Server) -> tuple[list[str], list[Message], list[str]]:
    """What a client saw of a turn whose owner died: before, after resuming elsewhere, and what the journal has."""
    seen: list[Message] = []
    with suppress(httpx.TransportError):
        async with owner.caller().start(session, SCRIPT, session) as first:
            seen = list(await first.rest())
    again = (
        other.caller().events(session, seen[-1].id, turn=session)
        if seen
        else other.caller().start(session, SCRIPT, session)
    )
    async with again as second:
        rest = list(await second.rest())
    async with other.caller().events(session, turn=session, **{"from": "start"}) as whole:
        stored = journaled(await whole.rest())
    fresh = (await other.caller().snapshot(session)).json()
    if second.status == 200:
        assert snapshot(reduced(session, [*seen, *rest]))["turns"] == fresh["turns"]
    return journaled(seen), rest, stored


def check(seen: list[str], rest: list[Message], stored: list[str]) -> int:
    """A resume is exact, or a snapshot says what to forget. Gives the ms of text that were lost."""
    lost = 0
    if any(message.event == "snapshot" for message in rest):
        forgotten = [data for data in seen if data not in stored]
        assert forgotten, "a snapshot although nothing was lost"
        assert seen[: -len(forgotten)] == stored[: len(seen) - len(forgotten)]
        assert {Record.of(data).type for data in forgotten} <= SHOWN_EARLY
        lost = at(forgotten[-1]) - at(forgotten[0])
        assert lost < BEHIND_MS
    else:
        assert seen + journaled(rest) == stored
    ends = [Record.of(data) for data in stored if Record.of(data).type in TERMINAL]
    assert [(end.type, end.fields().get("text"), end.data) for end in ends] == [("turn.completed", SAID, stored[-1])]
    return lost


async def test_a_turn_whose_owner_is_killed_goes_on_and_its_client_sees_every_committed_event_once(
    place: Place,
) -> None:
    """Its text is the undisturbed one, its transfer was made once. Of what the client was shown, no more is taken back
    than the text of one flush and one commit, and what the step that was not recorded said before."""
    chance, lost = random.Random(7), list[int]()
    async with place.server("b", **LEASE) as other:
        for number in range(ROUNDS):
            async with place.server("a", **LEASE) as owner:
                moments = [chance.uniform(0, LASTS) for _ in range(TURNS)]

                async def later(index: int, owner: Server = owner, moments: list[float] = moments) -> None:
                    await asyncio.sleep(max(moments) - moments[index])
                    lost.append(check(*await resumed(f"r{number}-{index}", owner, other)))  # noqa: B023

                clients = [asyncio.create_task(later(index)) for index in range(TURNS)]
                await asyncio.sleep(max(moments) + 0.1)
                owner.kill9()
                await asyncio.gather(*clients)
    ledger = place.ledger.read_text().splitlines()
    assert len(ledger) == len(set(ledger)) == ROUNDS * TURNS
    assert median(lost) < FLUSH_MS + COMMIT_MS


async def test_an_owner_that_froze_past_its_lease_writes_nothing_more(place: Place) -> None:
    """It stops just before the commit of a tool's call: the call is made by who goes on, and by nobody else; the
    streams of the old owner say why they end."""
    env = {**LEASE, **AGENTS, "LEGATO_AGENT": "agents:stopping"}
    async with place.server("a", **env, FREEZES="1") as owner, place.server("b", **env) as other:
        async with owner.caller().start("s", "go", "t") as frozen:
            await frozen.until("text.delta")
            async with other.caller().events("s", frozen.cursor, turn="t") as follower:
                ended = await follower.until("turn.completed")
            owner.sigcont()
            closing = (await frozen.rest())[-1]
            assert (closing.event, '"reason":"lease"' in closing.data) == ("stream.closing", True)
        async with other.caller().events("s", turn="t", **{"from": "start"}) as whole:
            stored = await whole.rest()
    assert stored[-1] == ended[-1]
    assert [str(message.id)[0] for message in stored if message.event == "tool.call"] == ["2"]
    assert len(place.ledger.read_text().splitlines()) == 1


async def test_a_tool_that_blocks_the_loop_is_named_and_runs_once(place: Place) -> None:
    """It outlasts the lease while a follower on another instance waits: that one takes over, waits until it must be
    done, and finds that it was."""
    env = {**LEASE, **AGENTS, "LEGATO_AGENT": "agents:blocking"}
    async with place.server("a", **env) as owner, place.server("b", **env) as other:
        async with owner.caller().start("s", "4", "t") as first:
            await first.until("text.delta")
            await eventually(lambda: said(owner, "agents.py"), within=0.3 + 2)
            async with other.caller().events("s", first.cursor, turn="t") as follower:
                await follower.until("turn.completed")
        async with other.caller().events("s", turn="t", **{"from": "start"}) as whole:
            kinds = [message.event for message in await whole.rest()]
    assert [kind for kind in kinds if kind.startswith("t") and kind != "text.delta"] == [
        "turn.started", "tool.call", "turn.resumed", "tool.result", "turn.completed",
    ]  # fmt: skip
    assert len(place.ledger.read_text().splitlines()) == 1


async def test_a_tool_that_blocks_the_loop_past_the_lease_loses_nothing_when_nobody_takes_over(place: Place) -> None:
    env = {**LEASE, **AGENTS, "LEGATO_AGENT": "agents:blocking"}
    async with place.server("a", **env) as owner, owner.caller().start("s", "4", "t") as only:
        kinds = [message.event for message in await only.rest()]
    assert kinds[-3:] == ["tool.result", "text.delta", "turn.completed"]
    assert len(place.ledger.read_text().splitlines()) == 1


async def said(server: Server, words: str) -> bool:
    return any("blocked by" in line and words in line for line in server.output().splitlines())
