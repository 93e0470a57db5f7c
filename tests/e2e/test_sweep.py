"""Turns whose owner was killed and that no client asks for, gone on with by the sweep target and by `legato sweep`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from conftest import Place
from e2e.following import eventually
from harness import Server
from journal.grpc_proxy import GrpcProxy
from legato.app import open_journal
from legato.journal import Journal, SessionKey, TurnRecord
from legato.settings import Settings

LEASE = {"LEGATO_LEASE": "1.5"}
SCRIPT = '/say 20 40\n/tool transfer {"amount": 1, "seconds": 0.2}\n/say 20 40'
LONG = '/tool transfer {"amount": 1}\n/tool slow {"seconds": 3}\n/say 2'
SAID = "".join(f"w{n} " for n in range(1, 41))


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stored(place: Place, request: pytest.FixtureRequest) -> AsyncIterator[Journal]:
    """The journal itself: whoever followed a turn would take it over."""
    emulator = request.getfixturevalue("emulator") if place.journal.startswith("firestore") else ""
    journal = open_journal(Settings(journal=place.journal, FIRESTORE_EMULATOR_HOST=emulator))
    yield journal
    await journal.close()


def sweeper(place: Place, **env: str) -> Server:
    ledger = {"LEGATO_DEMO_LEDGER": str(place.ledger)}
    return Server(place.journal, place.directory / "sweep.log", "sweep", {**ledger, **env})


async def abandon(place: Place, script: str, *sessions: str, at: str = "tool.result") -> None:
    """The owner of these sessions' turns is killed once each has come to an event of the type `at`, and nobody asks."""
    async with place.server("a", **LEASE) as owner:
        for session in sessions:
            async with owner.caller().start(session, script, "t") as answer:
                await answer.until(at)
        owner.kill9()


async def swept(server: Server) -> dict[str, Any]:
    answer = await server.caller().request("POST", "/")
    assert answer.status_code == 200, answer.text
    figures: dict[str, Any] = answer.json()
    return figures


async def found(server: Server) -> dict[str, Any]:
    """The first sweep that finds anything, once the lease of what was left alone has run out."""
    sweeps: list[dict[str, Any]] = []

    async def found() -> bool:
        sweeps.append(await swept(server))
        return bool(sweeps[-1]["found"])

    await eventually(found)
    return sweeps[-1]


async def record(journal: Journal, session: str) -> TurnRecord:
    known = await journal.turn(SessionKey("ann", session), "t")
    assert known
    return known


def transfers(place: Place) -> list[str]:
    return [json.loads(line)["key"] for line in place.ledger.read_text().splitlines()]


async def test_a_turn_that_nobody_asks_for_is_completed_by_a_sweep(place: Place, stored: Journal) -> None:
    await abandon(place, SCRIPT, "s", at="tool.call")
    async with sweeper(place) as server:
        figures = await found(server)
        assert (figures["found"], figures["ended"]) == (1, 1)
        assert (await swept(server))["found"] == 0
    done = await record(stored, "s")
    assert (done.status, done.output) == ("completed", SAID)
    assert transfers(place) == ["s/t/1-1"]


async def test_what_a_sweep_has_no_time_for_is_completed_by_the_next_one(place: Place, stored: Journal) -> None:
    await abandon(place, LONG, "s1", "s2")
    async with sweeper(place, LEGATO_SWEEP_SECONDS="1", LEGATO_SWEEP_TURNS="1") as server:
        figures = await found(server)
        assert (figures["found"], figures["handed_back"]) == (1, 1)
    async with sweeper(place) as server:
        assert (await swept(server))["ended"] == 2
    assert {(await record(stored, session)).status for session in ("s1", "s2")} == {"completed"}
    assert sorted(transfers(place)) == ["s1/t/1-1", "s2/t/1-1"]


async def test_a_sweep_beside_an_owner_leaves_its_turn_alone(place: Place, stored: Journal) -> None:
    async with place.server("a", **LEASE) as owner, sweeper(place) as server:
        async with owner.caller().start("s", "/say 40 10", "t") as answer:
            await answer.until("text.delta")
            for _ in range(8):
                assert (await swept(server))["found"] == 0
                await asyncio.sleep(0.4)
            await answer.rest()
        assert answer.text == SAID
    assert (await record(stored, "s")).status == "completed"


async def test_a_question_that_nobody_answered_is_ended_by_a_sweep(place: Place, stored: Journal) -> None:
    async with place.server("a", LEGATO_APPROVAL="1", **LEASE) as owner:
        async with owner.caller().start("s", '/tool wire {"amount": 1}\n/say 2', "t") as answer:
            await answer.until("turn.suspended")
        owner.kill9()
    async with sweeper(place) as server:
        figures = await found(server)
        assert (figures["found"], figures["ended"]) == (1, 1)
    done = await record(stored, "s")
    assert (done.status, done.output) == ("completed", "w1 w2 ")
    assert not place.ledger.exists()


async def test_two_sweepers_at_once_complete_each_turn_once(place: Place, stored: Journal) -> None:
    sessions = [f"s{n}" for n in range(6)]
    await abandon(place, LONG, *sessions)
    async with sweeper(place) as one, sweeper(place) as other:
        await asyncio.sleep(1.5)
        both = await asyncio.gather(swept(one), swept(other))
    assert sum(figures["ended"] for figures in both) == len(sessions), both
    assert {(await record(stored, session)).status for session in sessions} == {"completed"}
    assert sorted(transfers(place)) == [f"{session}/t/1-1" for session in sessions]


async def test_a_sweeper_that_is_terminated_hands_its_turns_back(place: Place, stored: Journal) -> None:
    await abandon(place, LONG, "s")
    async with sweeper(place, LEGATO_DRAIN="0.2") as server:
        sweeping = asyncio.create_task(found(server))
        await eventually(lambda: taken(stored))
        assert await server.terminate() < 8
        assert (await sweeping)["handed_back"] == 1
    lease = (await stored.standing(SessionKey("ann", "s"))).lease
    assert lease
    assert (lease.expires_at, lease.attempts) == (0, 1)


async def taken(journal: Journal) -> bool:
    return (await journal.standing(SessionKey("ann", "s"))).epoch == 2


async def test_the_command_sweeps_once_and_tells_the_same_figures(place: Place, stored: Journal) -> None:
    await abandon(place, SCRIPT, "s")
    await asyncio.sleep(1.5)
    env = {"LEGATO_DEMO_LEDGER": str(place.ledger)}
    with Command(place.directory, "sweep", "--journal", place.journal, env=env) as command:
        assert await command.ended() == 0
        figures = json.loads(command.output)
    assert (figures["found"], figures["ended"]) == (1, 1)
    assert (await record(stored, "s")).output == SAID
    assert transfers(place) == ["s/t/1-1"]


async def test_the_command_sweeps_again_and_again_until_it_is_told_to_stop(sqlite_url: str, tmp_path: Path) -> None:
    journal = open_journal(Settings(journal=sqlite_url))
    await journal.check()
    await journal.close()
    with Command(tmp_path, "sweep", "--journal", sqlite_url, "--every", "0.1") as command:
        await eventually(lambda: three_lines(command))
        command.signal(signal.SIGTERM)
        assert await command.ended() == 0
        assert {json.loads(line)["found"] for line in command.output.splitlines()} == {0}


async def three_lines(command: Command) -> bool:
    return command.output.count("\n") >= 3


@pytest.mark.emulator
async def test_a_sweep_that_finds_nothing_costs_firestore_one_empty_query_a_shard(
    emulator: str, firestore_url: str
) -> None:
    async with GrpcProxy(emulator) as hop:
        journal = open_journal(Settings(journal=firestore_url, FIRESTORE_EMULATOR_HOST=hop.host))
        assert await journal.orphans(10**13, 20) == []
        await journal.close()
    assert hop.calls == ["RunQuery"] * 8
